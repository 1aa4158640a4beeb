"""Gradient accumulation: how an epoch falls into windows (one optimizer step each) and micro-batches."""

from collections.abc import Generator, Iterable

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


def window_sizes(samples: int, batch_size: int, micro_batch: int) -> list[list[int]]:
    """Sizes of the micro-batches of each window, in order: `window_sizes(10, 4, 2)` -> [[2, 2], [2, 2], [2]].

    The last window holds what is left. A last micro-batch of one sample joins the one before it (also across a
    window), since BatchNorm has no spread over one sample. `batch_size` must be a multiple of `micro_batch`.
    """
    sizes = [min(micro_batch, samples - start) for start in range(0, samples, micro_batch)]
    per_window = batch_size // micro_batch
    if _joins(sizes, micro_batch):
        sizes = [*sizes[:-2], sizes[-2] + 1]
    return [sizes[start : start + per_window] for start in range(0, len(sizes), per_window)]


def join_single(batches: Iterable[Batch], micro_batch: int) -> Generator[Batch, None, None]:
    """The loader's batches, a last one of one sample joined to the one before it, as `window_sizes` says."""
    held: Batch | None = None
    for batch in batches:
        if held is None:
            held = batch
        elif len(batch[1]) == 1 < micro_batch:
            held = (torch.cat([held[0], batch[0]]), torch.cat([held[1], batch[1]]))
        else:
            yield held
            held = batch
    if held is not None:
        yield held


def _joins(sizes: list[int], micro_batch: int) -> bool:
    return len(sizes) > 1 and sizes[-1] == 1 < micro_batch
