"""Loads prepared data in batches of raw samples. The settings change speed alone: every setting gives equal batches."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.data.prepared import Indices, Prepared
from stages.data.workers import read_in_workers, read_samples
from stages.runtime import decisions
from stages.runtime.progress import say
from stages.runtime.seeds import derive

STAGE = "benchmark_data"
WAIT_S = 120.0
"""How long a batch may take a worker before it counts as hanging."""


@dataclass(frozen=True)
class LoaderSettings:
    """The decision of `benchmark_data`."""

    workers: int = 0
    """Worker processes; 0 loads in process."""

    batched: bool = True
    """Read a whole batch at once (one index operation), or sample by sample as a plain DataLoader does."""


def epoch_order(indices: Indices, seed: int, epoch: int) -> Indices:
    """The shuffled order of an epoch, int64 (n,): depends on (seed, epoch) alone, never on loader settings."""
    generator = np.random.Generator(np.random.PCG64(derive(seed, "shuffle", epoch)))
    return generator.permutation(np.asarray(indices, dtype=np.int64))


def batches(
    prepared: Prepared,
    indices: Indices,
    batch_size: int,
    settings: LoaderSettings | None = None,
    wait_s: float = WAIT_S,
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Raw samples (n, *shape) and labels int64 (n,), in the order of `indices`; the last batch may be smaller.

    Raises `BadData` when a file has changed, or when a worker dies or gives nothing for `wait_s` seconds.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    chosen = np.asarray(indices, dtype=np.int64)
    parts = [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)]
    yield from batches_of(prepared, parts, settings, wait_s)


def batches_of(
    prepared: Prepared,
    parts: Sequence[Indices],
    settings: LoaderSettings | None = None,
    wait_s: float = WAIT_S,
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """As `batches`, one batch for each part of indices, in order; parts may differ in size.

    Closing it early ends the workers, as its end does. With workers, a few parts are read ahead. Raises as `batches`.
    """
    with closing(_read(prepared, parts, settings or LoaderSettings(), wait_s)) as stream:
        for part, samples in zip(parts, stream, strict=True):
            yield torch.from_numpy(samples), torch.from_numpy(prepared.labels[part])


def _read(
    prepared: Prepared, parts: Sequence[Indices], settings: LoaderSettings, wait_s: float
) -> Generator[npt.NDArray[Any], None, None]:
    if settings.workers:
        yield from read_in_workers(prepared, parts, settings.workers, batched=settings.batched, wait_s=wait_s)
    else:
        read = prepared.read if settings.batched else partial(read_samples, prepared)
        yield from map(read, parts)


def decision_key(prepared: Prepared) -> dict[str, Any]:
    """What a decision about loader settings depends on."""
    info = prepared.info
    return {
        "device": decisions.device_key(),
        "data": {"hash": info.hash, "kind": info.kind, "shape": list(info.shape), "dtype": info.dtype},
        "versions": {name: version(name) for name in ("numpy", "pillow", "torch")},
    }


def loader_settings(prepared: Prepared) -> LoaderSettings:
    """Recalls the decision of `benchmark_data` for this data and device; the default, and a line that says so, else."""
    kept = decisions.recall(STAGE, decision_key(prepared))
    if kept is None:
        settings = LoaderSettings()
        say(f"no loader settings measured for this data and machine: {describe(settings)} (`shipway run {STAGE}`)")
        return settings
    return LoaderSettings(**kept["choice"])


def describe(settings: LoaderSettings) -> str:
    """`batched indexing in process`, `per-sample indexing in 2 workers`."""
    plural = "" if settings.workers == 1 else "s"
    where = f"in {settings.workers} worker{plural}" if settings.workers else "in process"
    return f"{'batched' if settings.batched else 'per-sample'} indexing {where}"
