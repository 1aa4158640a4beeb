"""How large a network is: parameters, and multiply-accumulates for one sample."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stages.models.registry import batch_shape


@dataclass(frozen=True)
class Counts:
    """Size of a network."""

    params: int
    """Numbers in its weights; tied weights count once."""

    macs: int
    """Multiply-accumulates of convolutions, matrix products and attention, for one sample."""


def count(module: nn.Module, input_shape: tuple[int, ...]) -> Counts:
    """Counts by one forward pass of one sample in evaluation mode; the mode is put back."""
    anchor = next(module.parameters(), None)
    device, dtype = (anchor.device, anchor.dtype) if anchor is not None else (torch.device("cpu"), torch.float32)
    was_training, fused = module.training, torch.backends.mha.get_fastpath_enabled()
    module.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # One fused operation for a transformer layer: it would count 0.
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(torch.zeros(batch_shape(input_shape, 1), device=device, dtype=dtype))
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        module.train(was_training)
    params = sum(parameter.numel() for parameter in module.parameters())
    return Counts(params=params, macs=counter.get_total_flops() // 2)  # One multiply-accumulate is two operations.
