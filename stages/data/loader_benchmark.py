"""Measures how fast loader settings deliver batches, and says what bounds the loader."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stages.data.loaders import LoaderSettings, batches, describe, epoch_order
from stages.data.prepared import Indices, Prepared
from stages.runtime.progress import track

DEFAULT_LOADER = "default loader"
"""The reference: torch's DataLoader over single samples, in process. Measured, never chosen."""
_ROUNDS = 3
_LOSING = 3.0
"""A candidate that has taken this many times as long as the best one is stopped, and not measured again."""
_WARM_UP_SHARE = 0.1


@dataclass(frozen=True)
class Speed:
    """One candidate's measurement; the best of its rounds."""

    first_batch_ms: float
    """Until the first batch is there, the start of the workers included."""
    samples_per_s: float
    """After the first batch."""
    epoch_s: float
    """Estimate for the train split: first batch, then the rest at that speed. What candidates are compared by."""
    batches: int
    """Batches that were measured after the first."""


Loader = Callable[[], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class _Task:
    """What every candidate has to load."""

    order: Indices
    batch_size: int
    epoch_samples: int


def candidates(workers: Sequence[int]) -> dict[str, LoaderSettings]:
    """Every number of workers with and without batched indexing, by description; the cheapest to start first."""
    found = [LoaderSettings(count, batched) for count in sorted(set(workers)) for batched in (True, False)]
    return {describe(settings): settings for settings in found}


def measure(
    prepared: Prepared,
    choices: dict[str, LoaderSettings],
    *,
    batch_size: int,
    limit: int,
    time_budget_s: float,
    seed: int,
) -> dict[str, Speed]:
    """The speed of each choice and of the default loader, on `limit` batches of the train split after the first.

    Every one is measured once; further rounds only while the time budget lasts.
    """
    order = _order(prepared.indices("train"), seed, (limit + 1) * batch_size)
    task = _Task(order, batch_size, len(prepared.indices("train")))
    loaders = {name: _loader(prepared, task, settings) for name, settings in choices.items()}
    loaders[DEFAULT_LOADER] = lambda: _default_loader(prepared, task)
    started = time.perf_counter()
    share_s = time_budget_s * (1.0 - _WARM_UP_SHARE) / len(loaders)
    _run(_loader(prepared, task, LoaderSettings()), task, time_budget_s * _WARM_UP_SHARE)  # Fills the disk's cache.
    speeds: dict[str, Speed] = {}
    for round_number in range(_ROUNDS):
        for name in track(_worth_measuring(loaders, speeds), f"measure loaders, round {round_number + 1}"):
            spent = time.perf_counter() - started
            if name in speeds and spent + share_s > time_budget_s:
                return speeds
            best_s = min((speed.epoch_s for speed in speeds.values()), default=float("inf"))
            bar_s = float("inf") if name == DEFAULT_LOADER else best_s  # The reference is measured in full.
            speed = _run(loaders[name], task, share_s, bar_s)
            if name not in speeds or speed.epoch_s < speeds[name].epoch_s:
                speeds[name] = speed
    return speeds


def _order(train: Indices, seed: int, count: int) -> Indices:
    """At least one and at most `count` indices, over as many shuffled epochs as that needs."""
    epochs = range(-(-count // len(train)))
    return np.concatenate([epoch_order(train, seed, epoch) for epoch in epochs])[:count]


def _loader(prepared: Prepared, task: _Task, settings: LoaderSettings) -> Loader:
    return lambda: batches(prepared, task.order, task.batch_size, settings)


def _default_loader(prepared: Prepared, task: _Task) -> Iterator[tuple[Tensor, Tensor]]:
    class Single(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.from_numpy(prepared.read([index])[0]), int(prepared.labels[index])

    sampler: Any = task.order.tolist()
    # Its own generator: else it would take its seed from the global one.
    loader = DataLoader(Single(), task.batch_size, sampler=sampler, generator=torch.Generator())
    yield from loader


def _worth_measuring(loaders: dict[str, Loader], speeds: dict[str, Speed]) -> list[str]:
    best_s = min((speed.epoch_s for speed in speeds.values()), default=float("inf"))
    return [
        name
        for name in loaders
        if name not in speeds or name == DEFAULT_LOADER or speeds[name].epoch_s <= _LOSING * best_s
    ]


def _run(loader: Loader, task: _Task, limit_s: float, best_epoch_s: float = float("inf")) -> Speed:
    """Loads until the order ends, the time is used up, or it clearly loses; always the first batch."""
    started = time.perf_counter()
    stream = loader()
    _, labels = next(stream)
    first_s = time.perf_counter() - started
    samples, first_samples, count = 0, len(labels), 0
    losing_s = _LOSING * best_epoch_s * len(task.order) / task.epoch_samples
    for _, labels in stream:
        samples += len(labels)
        count += 1
        elapsed_s = time.perf_counter() - started
        if elapsed_s > limit_s or elapsed_s > losing_s:
            break
    rest_s = time.perf_counter() - started - first_s
    rate = samples / rest_s if samples else first_samples / first_s
    epoch_s = first_s + max(task.epoch_samples - first_samples, 0) / rate
    return Speed(first_s * 1000.0, rate, epoch_s, count)


def bound(prepared: Prepared, chosen: LoaderSettings, speeds: dict[str, Speed]) -> str:
    """What bounds the loader, in words, from the measured speeds."""
    in_process = speeds.get(describe(LoaderSettings()))
    picked = speeds.get(describe(chosen))
    if chosen.workers and in_process and picked:
        gain = in_process.epoch_s / picked.epoch_s
        return f"reading samples bounds the loader: workers give {gain:.1f} times the speed of one process"
    if prepared.info.kind == "files":
        return "decoding the image files bounds the loader"
    return "reading the array bounds nothing: the default loader spends its time on Python's work per sample"
