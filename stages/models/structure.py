"""Describes the layers of a module and gives a fresh one the same shapes: what pruning changed is rebuilt."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

Layers = dict[str, dict[str, Any]]
"""Path of a submodule -> {type, attributes, shapes of its own parameters and buffers}."""

_ATTRIBUTES = (
    "in_channels", "out_channels", "groups",  # convolutions
    "in_features", "out_features",  # linear
    "num_features", "num_channels", "num_groups", "normalized_shape",  # norms
    "num_embeddings", "embedding_dim", "num_parameters",  # embeddings, PReLU
)  # fmt: skip
"""Attributes that a layer reads in its forward pass, or that exporters and pruners read, and that pruning changes."""


class StructureError(Exception):
    """The description does not fit the module."""


def describe(module: nn.Module) -> Layers:
    """Every submodule that holds weights or buffers of its own, in the module's order."""
    layers: Layers = {}
    for path, layer in module.named_modules():
        tensors = _own(layer)
        if tensors:
            layers[path] = {
                "type": type(layer).__name__,
                "attributes": {
                    name: _plain(getattr(layer, name)) for name in _ATTRIBUTES if _is_plain(getattr(layer, name, None))
                },
                "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
            }
    return layers


def resize(module: nn.Module, layers: Mapping[str, Any], tied: Mapping[str, str]) -> None:
    """Gives each described layer its attributes and shapes, in place. Raises `StructureError`.

    The tensors are empty where the shape changed; load the weights next.
    """
    found = dict(module.named_modules())
    for path, wanted in layers.items():
        layer = found.get(path)
        if layer is None:
            raise StructureError(f"the fresh model has no layer {path!r}")
        if type(layer).__name__ != wanted["type"]:
            raise StructureError(f"layer {path!r} must be {wanted['type']}, the fresh model has {type(layer).__name__}")
        for name, value in wanted["attributes"].items():
            setattr(layer, name, tuple(value) if isinstance(value, list) else value)
        _reshape(layer, path, wanted["shapes"])
    for copy, original in tied.items():
        _share(module, copy, original)


def untie(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A state dict that shares no memory (safetensors refuses it), and which names were equal: {copy: original}."""
    originals: dict[tuple[int, tuple[int, ...], tuple[int, ...]], str] = {}
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and place in originals:
            tied[name] = originals[place]
            continue
        originals[place] = name
        kept[name] = tensor.detach().cpu().contiguous().clone()
    return kept, tied


def tie(state: Mapping[str, Tensor], tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The full state dict again. Raises `StructureError` when an original is missing."""
    missing = [original for original in tied.values() if original not in state]
    if missing:
        raise StructureError(f"the weights lack {', '.join(missing)}")
    return {**state, **{copy: state[original] for copy, original in tied.items()}}


def _own(layer: nn.Module) -> dict[str, Tensor]:
    names = [name for name, _ in layer.named_parameters(recurse=False, remove_duplicate=False)]
    names += [name for name, _ in layer.named_buffers(recurse=False, remove_duplicate=False)]
    persistent = set(names) - layer._non_persistent_buffers_set
    return {name: getattr(layer, name) for name in names if name in persistent}


def _is_plain(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, tuple) and all(isinstance(part, int) for part in value)
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _reshape(layer: nn.Module, path: str, shapes: Mapping[str, Any]) -> None:
    own = _own(layer)
    if set(own) != set(shapes):
        raise StructureError(f"layer {path!r} must hold {sorted(shapes)}, the fresh model's holds {sorted(own)}")
    for name, shape in shapes.items():
        old = own[name]
        if list(old.shape) == list(shape):
            continue
        fresh = torch.zeros(shape, dtype=old.dtype)
        if isinstance(old, nn.Parameter):
            setattr(layer, name, nn.Parameter(fresh, requires_grad=old.requires_grad))
        else:
            setattr(layer, name, fresh)  # nn.Module keeps it registered as a buffer.


def _share(module: nn.Module, copy: str, original: str) -> None:
    try:
        owner, _, name = copy.rpartition(".")
        source, _, source_name = original.rpartition(".")
        setattr(module.get_submodule(owner), name, getattr(module.get_submodule(source), source_name))
    except AttributeError as error:
        raise StructureError(f"{copy} and {original} must be one tensor: {error}") from None
