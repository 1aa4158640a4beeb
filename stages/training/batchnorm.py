"""Running statistics under accumulation: put back after a failed window, and taken anew at the end."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from stages.training.slots import Slots

_KINDS = (nn.modules.batchnorm._BatchNorm,)


def layers(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The BatchNorm layers that keep running statistics."""
    return [part for part in module.modules() if isinstance(part, _KINDS) and part.running_mean is not None]


class Buffers:
    """A network's buffers (running statistics and the like) as they were before a window."""

    def __init__(self, module: nn.Module) -> None:
        self._slots = Slots(module, weights=False)
        self._kept = [buffer.detach().clone() for buffer in self._slots.now()]
        self._were_finite = [bool(torch.isfinite(buffer).all()) for buffer in self._kept]

    def to_stay_finite(self) -> list[Tensor]:
        """The buffers that were finite at the start; others (a mask of -inf) may hold what they like."""
        return [buffer for buffer, was in zip(self._slots.now(), self._were_finite, strict=True) if was]

    @torch.no_grad()
    def keep(self) -> None:
        """Remembers the present values."""
        if self._kept:
            torch._foreach_copy_(self._kept, self._slots.now())

    @torch.no_grad()
    def put_back(self) -> None:
        """Takes the remembered values."""
        if self._kept:
            torch._foreach_copy_(self._slots.now(), self._kept)


@torch.no_grad()
def reestimate(module: nn.Module, inputs: Iterable[Tensor]) -> None:
    """Sets the running statistics to the plain mean of those of all batches in `inputs` (n, ...), weights as they are.

    Everything but BatchNorm is in evaluation mode (no dropout); mode and momentum are put back. Statistics of many
    small batches: the mean is exact, the variance is the mean within a batch (Ioffe & Szegedy 2015, algorithm 2).
    """
    found = layers(module)
    modes, momenta = [(part, part.training) for part in module.modules()], [layer.momentum for layer in found]
    module.eval()
    for layer in found:
        layer.reset_running_stats()
        layer.momentum = None  # A cumulative mean.
        layer.train()
    try:
        for batch in inputs:
            if len(batch) > 1:  # One sample has no spread.
                module(batch)
    finally:
        for layer, momentum in zip(found, momenta, strict=True):
            layer.momentum = momentum
        for part, mode in modes:
            part.training = mode


def note(module: nn.Module, micro_batch: int, batch_size: int, *, reestimated: bool) -> dict[str, Any] | None:
    """What the record says of BatchNorm; None for a network without it."""
    count = len(layers(module))
    if not count:
        return None
    return {
        "layers": count,
        "samples_per_statistic": micro_batch,
        "effective_batch": batch_size,
        "reestimated": reestimated,
    }
