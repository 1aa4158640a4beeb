"""Latency of model files side by side: alternating rounds, one session alive at a time, fixed threads.

With several sessions alive their thread pools compete: one float model read 7.2 ms instead of 1.7 ms.
"""

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.deployment import sessions

ROUNDS = 5


@dataclass(frozen=True)
class Latency:
    """Timed runs of one model."""

    runs_ms: npt.NDArray[np.float64]
    """(runs,)"""

    @property
    def p50_ms(self) -> float:
        """Median."""
        return float(np.percentile(self.runs_ms, 50))

    @property
    def p95_ms(self) -> float:
        """95th percentile."""
        return float(np.percentile(self.runs_ms, 95))


def latency(
    paths: Mapping[str, Path], raw: npt.NDArray[Any], threads: int, repeats: int, warmup: int
) -> dict[str, Latency]:
    """Times each file on one batch of raw samples: `repeats` runs in all, in rounds that alternate in both directions.

    `warmup` untimed runs come before each round. Raises `BadData` when a file does not load.
    """
    runs: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in paths}
    share = -(-repeats // ROUNDS)
    for turn in range(ROUNDS):
        names = list(paths) if turn % 2 == 0 else list(paths)[::-1]
        for name in names:
            runs[name].append(_time(paths[name], raw, threads, share, warmup))
    return {name: Latency(np.concatenate(parts)[:repeats]) for name, parts in runs.items()}


def _time(path: Path, raw: npt.NDArray[Any], threads: int, repeats: int, warmup: int) -> npt.NDArray[np.float64]:
    loaded = sessions.session(path, threads)
    for _ in range(warmup):
        sessions.run(loaded, raw)
    taken_ms = np.empty(repeats)
    collecting = gc.isenabled()
    gc.disable()  # A collection in the middle of a run would be counted as the model's.
    try:
        for turn in range(repeats):
            started = time.perf_counter_ns()
            sessions.run(loaded, raw)
            taken_ms[turn] = (time.perf_counter_ns() - started) / 1e6
    finally:
        if collecting:
            gc.enable()
    return taken_ms
