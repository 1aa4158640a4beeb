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

ROUNDS = 15
"""Alternations. A session's threads may lie well or badly for as long as it lives: rounds with new sessions average
that out, and a comparison takes the median over rounds of the ratio inside a round."""

ROUND_LIMIT_S = 0.5
"""A round of a slow model ends after so long, with at least `MIN_RUNS` runs."""

MIN_RUNS = 3


@dataclass(frozen=True)
class Latency:
    """Timed runs of one model."""

    rounds_ms: tuple[npt.NDArray[np.float64], ...]
    """One array (runs,) per round."""

    @property
    def runs_ms(self) -> npt.NDArray[np.float64]:
        """(runs,) of all rounds."""
        return np.concatenate(self.rounds_ms)

    @property
    def p50_ms(self) -> float:
        """Median."""
        return float(np.percentile(self.runs_ms, 50))

    @property
    def p95_ms(self) -> float:
        """95th percentile."""
        return float(np.percentile(self.runs_ms, 95))

    def speedup_over(self, other: "Latency") -> float:
        """How many times faster than `other`: median over the rounds of the ratio of their medians."""
        pairs = zip(other.rounds_ms, self.rounds_ms, strict=True)
        return float(np.median([np.median(theirs) / np.median(ours) for theirs, ours in pairs]))


def latency(
    paths: Mapping[str, Path], raw: npt.NDArray[Any], threads: int, repeats: int, warmup: int
) -> dict[str, Latency]:
    """Times each file on one batch of raw samples: `repeats` runs in all, in rounds that alternate in both directions.

    `warmup` untimed runs come before each round; a round of a slow model is cut short (`ROUND_LIMIT_S`). Raises
    `BadData` when a file does not load.
    """
    runs: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in paths}
    share = -(-repeats // ROUNDS)
    for turn in range(ROUNDS):
        names = list(paths) if turn % 2 == 0 else list(paths)[::-1]
        for name in names:
            runs[name].append(_time(paths[name], raw, threads, share, warmup))
    return {name: Latency(tuple(parts)) for name, parts in runs.items()}


def _time(path: Path, raw: npt.NDArray[Any], threads: int, repeats: int, warmup: int) -> npt.NDArray[np.float64]:
    loaded = sessions.session(path, threads)
    until = time.perf_counter() + ROUND_LIMIT_S / 2
    for turn in range(warmup):
        sessions.run(loaded, raw)
        if turn and time.perf_counter() > until:
            break
    taken_ms: list[float] = []
    until = time.perf_counter() + ROUND_LIMIT_S
    collecting = gc.isenabled()
    gc.disable()  # A collection in the middle of a run would be counted as the model's.
    try:
        while len(taken_ms) < repeats and (len(taken_ms) < MIN_RUNS or time.perf_counter() < until):
            started = time.perf_counter_ns()
            sessions.run(loaded, raw)
            taken_ms.append((time.perf_counter_ns() - started) / 1e6)
    finally:
        if collecting:
            gc.enable()
    return np.array(taken_ms)
