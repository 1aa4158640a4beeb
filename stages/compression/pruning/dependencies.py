"""The dependency graph: which channels can only go together. A thin, corrected layer over Torch-Pruning.

Fang et al. 2023, "DepGraph: Towards Any Structural Pruning", https://arxiv.org/abs/2301.12900. What its own pruner
classes do in silence (frozen parameters, `round_to` with groups, unknown operations) is decided by us instead, with a
reason: only its graph and its importance are used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_pruning import ops
from torch_pruning.dependency import DependencyGraph
from torch_pruning.pruner.function import BasePruningFunc, LayernormPruner

ROOTS = (nn.modules.conv._ConvNd, nn.Linear)
"""Layers whose output channels are pruned; everything coupled to them follows."""


class _OrderedLayerNorm(LayernormPruner):  # type: ignore[misc]  # torch_pruning is untyped
    """Keeps the channels in order: Torch-Pruning 1.6.1 takes them in a set's order, which mixes them up."""

    def prune_out_channels(self, layer: nn.LayerNorm, idxs: Sequence[int]) -> nn.LayerNorm:
        gone = set(idxs)
        keep = [i for i in range(layer.normalized_shape[-1]) if i not in gone]
        for name in ("weight", "bias"):
            parameter = getattr(layer, name)
            if parameter is not None:
                setattr(layer, name, self._prune_parameter_and_grad(parameter, keep, -1))
        layer.normalized_shape = (*layer.normalized_shape[:-1], len(keep))
        return layer

    prune_in_channels = prune_out_channels  # One function for both is how Torch-Pruning couples a layer's two sides.


def trace(module: nn.Module, example: Tensor) -> DependencyGraph:
    """The graph of `module`, traced by one forward pass of `example` (normalised float, as the module takes it).

    Frozen parameters are traced too, so that what depends on them is seen.
    """
    graph = DependencyGraph()
    norms: dict[type, BasePruningFunc] = {
        type(layer): _OrderedLayerNorm() for layer in module.modules() if isinstance(layer, nn.LayerNorm)
    }
    with restored(module), torch.enable_grad():
        module.requires_grad_(True)
        graph.build_dependency(
            module, example_inputs=example, forward_fn=_forward, customized_pruners=norms, verbose=False
        )
    return graph


def groups(graph: DependencyGraph) -> Iterator[tuple[str, Any]]:
    """(name of the root layer, group of coupled layers with all channels), in a fixed order."""
    for group in graph.get_all_groups(root_module_types=ROOTS):
        yield graph._module2name[group[0].dep.target.module], group


def layers_of(graph: DependencyGraph, group: Any) -> Iterator[tuple[str, Any, bool, int]]:
    """(name, layer or parameter, outputs rather than inputs, channels of it) of each coupled layer; no operations."""
    for dep, indices in group:
        layer = dep.target.module
        if isinstance(layer, nn.Parameter):
            yield graph._param_to_name[layer], layer, True, len(indices)
        elif layer in graph._module2name:
            yield graph._module2name[layer], layer, bool(graph.is_out_channel_pruning_fn(dep.handler)), len(indices)


def reaches_output(graph: DependencyGraph, group: Any) -> bool:
    """Whether the group's channels are the model's outputs."""
    for dep, _ in group:
        if dep.target.type == ops.OPTYPE.OUTPUT:
            return True
        if not dep.target.outputs and graph.is_out_channel_pruning_fn(dep.handler):
            return True
    return False


def channels(graph: DependencyGraph, layer: Any, outputs: bool) -> int:
    """The present number of output or input channels of a layer."""
    return int((graph.get_out_channels if outputs else graph.get_in_channels)(layer))


def remove(module: nn.Module, example: Tensor, plan: Mapping[str, Iterable[int]]) -> None:
    """Takes the planned output channels out of `module`, in place, and whatever is coupled to them.

    `plan` maps a root layer's name to the indices of its output channels that go.
    """
    trainable = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    graph = trace(module, example)
    for name, indices in plan.items():
        layer = module.get_submodule(name)
        group = graph.get_pruning_group(layer, graph.get_pruner_of_module(layer).prune_out_channels, list(indices))
        group.prune()
    for name, parameter in module.named_parameters():  # Torch-Pruning makes new parameters, all of them trainable.
        parameter.requires_grad_(trainable[name])
        parameter.grad = None


def said(error: Exception) -> str:
    """An exception of the library or the model, in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _forward(module: nn.Module, example: Tensor) -> Any:
    return module(example)


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Puts back which layers train and which parameters are trainable, whatever happens inside."""
    modes = {layer: layer.training for layer in module.modules()}
    trainable = {parameter: parameter.requires_grad for parameter in module.parameters()}
    try:
        yield
    finally:
        for parameter, wanted in trainable.items():
            parameter.requires_grad_(wanted)
        for layer, mode in modes.items():
            layer.training = mode
