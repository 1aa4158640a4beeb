"""Less memory for more time: blocks compute their activations again in the backward pass (Chen et al. 2016)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stages.runtime.exits import BadParams
from stages.training.batchnorm import Buffers


@contextmanager
def checkpointed(module: nn.Module, *, enabled: bool) -> Iterator[None]:
    """Inside, the network's blocks keep only their inputs. Values and gradients stay the same, bit for bit.

    A block is a child of a Sequential or ModuleList that has children itself, or else a direct child of the network
    with children. Raises `BadParams` when there is none.
    """
    if not enabled:
        yield
        return
    found = blocks(module)
    if not found:
        raise BadParams(
            "activation_checkpointing needs a network of blocks (modules inside a Sequential or ModuleList that "
            "have layers inside); this one has none: set it to false"
        )
    for block in found:
        block.forward = _recomputing(block, block.forward)
    try:
        yield
    finally:
        for block in found:
            del block.forward  # The class's own shows again.


def blocks(module: nn.Module) -> list[nn.Module]:
    """The outermost blocks of a network, in order."""
    found: list[nn.Module] = []
    _collect(module, found)
    return found or [child for child in module.children() if _has_layers(child)]


def _collect(module: nn.Module, found: list[nn.Module]) -> None:
    for child in module.children():
        if isinstance(module, nn.Sequential | nn.ModuleList) and _has_layers(child) and not _is_list(child):
            found.append(child)
        else:
            _collect(child, found)


def _has_layers(module: nn.Module) -> bool:
    return any(True for _ in module.children())


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential | nn.ModuleList)


def _recomputing(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    buffers = Buffers(block)

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _counted_once(buffers)

    def call(*inputs: Any, **named: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)

    return call


@contextmanager
def _counted_once(buffers: Buffers) -> Iterator[None]:
    """The second forward pass must not move BatchNorm's running statistics a second time."""
    buffers.keep()
    try:
        yield
    finally:
        buffers.put_back()
