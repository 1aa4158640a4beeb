"""What feeds the training loop: the micro-batches of an epoch, from any of its optimizer steps on.

Which samples come, and how they are augmented, depends on (seed, epoch, sample) alone: not on workers, on the
micro-batch, or on where it starts.

Of 61 train samples the last window holds 5, which are one micro-batch: none is left alone.

>>> sizes = window_sizes(samples=len(prepared.indices("train")), batch_size=8)
>>> settings = {"epoch": 1, "seed": 0, "micro_batch": 4, "loader": LoaderSettings(), "augmenter": None}
>>> [len(labels) for raw, labels in feed(prepared, sizes, first_window=len(sizes) - 2, **settings)]
[4, 4, 5]
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import accumulate, pairwise

import numpy as np
from torch import Tensor

from stages.data.augment import Augmenter
from stages.data.loaders import LoaderSettings, batches_of, epoch_order
from stages.data.prepared import Indices, Prepared
from stages.training.ranks import Ranks
from stages.training.windows import micro_sizes

Batch = tuple[Tensor, Tensor]


def window_ids(prepared: Prepared, sizes: Sequence[int], seed: int, epoch: int, window: int) -> Indices:
    """The samples of window number `window` (from 0) of an epoch, int64 (n,), in order; `sizes` as for `feed`."""
    order = _order(prepared, sizes, seed, epoch)
    start = sum(sizes[:window])
    return order[start : start + sizes[window]]


def feed(
    prepared: Prepared,
    sizes: Sequence[int],
    *,
    first_window: int,
    epoch: int,
    seed: int,
    micro_batch: int,
    loader: LoaderSettings,
    augmenter: Augmenter | None,
    ranks: Ranks | None = None,
) -> Generator[Batch, None, None]:
    """The micro-batches of an epoch's windows from `first_window` (from 0) on: as `micro_sizes` splits each window.

    `sizes`: `window_sizes` of the train split. Gives raw samples (n, *shape) with labels int64 (n,); with mixup,
    float32 images in the raw domain with labels float32 (n, classes). Of the windows before `first_window` no sample is
    read (but as partners, with mixup). Of several `ranks` each gets its part of every window. Closing it early ends the
    loader's workers. Raises `BadData` as `batches` does.
    """
    if not 0 <= first_window <= len(sizes):
        raise ValueError(f"first_window must be in 0..{len(sizes)}; got {first_window}")
    left, windows = _order(prepared, sizes, seed, epoch)[sum(sizes[:first_window]) :], sizes[first_window:]
    if ranks is not None and ranks.size > 1:
        left, windows = _share(left, windows, ranks)
    ends = list(accumulate(size for window in windows for size in micro_sizes(window, micro_batch)))
    if augmenter is None:
        yield from batches_of(prepared, _cut(left, ends), loader)
    else:
        yield from _augmented(prepared, left, ends, epoch, loader, augmenter)


def _share(left: Indices, windows: Sequence[int], ranks: Ranks) -> tuple[Indices, list[int]]:
    """Of the windows in `left`, the samples of this rank, and how many of each window."""
    starts = accumulate(windows, initial=0)
    mine = [left[start : start + size][ranks.part(size)] for start, size in zip(starts, windows, strict=False)]
    return np.concatenate([left[:0], *mine]), [len(part) for part in mine]


def _augmented(
    prepared: Prepared, left: Indices, ends: list[int], epoch: int, loader: LoaderSettings, augmenter: Augmenter
) -> Generator[Batch, None, None]:
    """With mixup, each micro-batch is read, flipped, cropped and cut together with its partners, then mixed."""
    own, classes = _cut(left, ends), len(prepared.info.classes)
    parts = own
    if augmenter.mixes:
        parts = [np.concatenate(pair) for pair in zip(own, _cut(augmenter.partners(left, epoch), ends), strict=True)]
    with closing(batches_of(prepared, parts, loader)) as stream:
        for (raw, labels), read, ids in zip(stream, parts, own, strict=True):
            changed, count = augmenter.apply(raw, read, epoch), len(ids)
            if augmenter.mixes:
                images, partners = changed[:count], changed[count:]
                yield augmenter.mix(images, partners, labels[:count], labels[count:], ids, epoch, classes)
            else:
                yield changed, labels


def _cut(ids: Indices, ends: list[int]) -> list[Indices]:
    return [ids[start:end] for start, end in pairwise([0, *ends])]


def _order(prepared: Prepared, sizes: Sequence[int], seed: int, epoch: int) -> Indices:
    train = prepared.indices("train")
    if sum(sizes) != len(train):
        raise ValueError(
            f"windows must hold each of the {len(train)} train samples once; their sizes sum to {sum(sizes)}"
        )
    return epoch_order(train, seed, epoch)
