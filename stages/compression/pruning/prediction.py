"""Predicts the multiply-accumulates of a pruned network from its widths, so that the search needs few real copies."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stages.compression.pruning.candidates import Candidate
from stages.compression.pruning.dependencies import restored
from stages.compression.pruning.plan import Widths

Side = tuple[str, bool]
"""(name of a layer, its outputs rather than its inputs)."""


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer."""

    macs: float
    """Multiply-accumulates for one sample."""
    inputs: int
    outputs: int


def layers(module: nn.Module, batch: Tensor) -> dict[str, Layer]:
    """Every convolution and linear layer that runs, by name; one that runs twice counts twice.

    `batch` is what the module takes. A convolution costs output numbers x kernel size x inputs of its group, a linear
    layer output numbers x inputs.
    """
    macs: dict[str, float] = defaultdict(float)
    found: dict[str, nn.Conv2d | nn.Linear] = {}

    def watch(name: str) -> Any:
        def hook(layer: Any, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            is_linear = isinstance(layer, nn.Linear)
            numbers = inputs[0].numel() if not is_linear and layer.transposed else outputs.numel()
            macs[name] += numbers * layer.weight[0].numel() / len(batch)
            found[name] = layer

        return hook

    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    hooks = [m.register_forward_hook(watch(name)) for name, m in module.named_modules() if isinstance(m, kinds)]
    try:
        with restored(module), torch.no_grad():
            module.eval()(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: Layer(macs[name], *_sides(layer)) for name, layer in found.items()}


def predicted(total: int, sizes: dict[str, Layer], candidates: Sequence[Candidate], kept: Widths) -> float:
    """Multiply-accumulates with so many channels kept, of `total` with all; what is in no layer stays as it is."""
    gone: dict[Side, float] = defaultdict(float)
    for candidate, width in zip(candidates, kept, strict=True):
        for (name, outputs), per_channel in candidate.coupled.items():
            gone[name, outputs] += (candidate.channels - width) * per_channel
    saved = 0.0
    for name, layer in sizes.items():
        share = (1.0 - gone[name, False] / layer.inputs) * (1.0 - gone[name, True] / layer.outputs)
        saved += layer.macs * (1.0 - share)
    return total - saved


def _sides(layer: Any) -> tuple[int, int]:
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels
