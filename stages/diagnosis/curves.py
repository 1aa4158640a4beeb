"""Robust measures of a curve. All take finite values, shape (n,)."""

import numpy as np

from stages.diagnosis.history import Floats

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


def start_level(values: Floats) -> float:
    """Where a curve starts: the median of its first three values."""
    return float(np.median(values[:3]))


def end_level(values: Floats, share: float = 0.05, least: int = 3) -> float:
    """Where a curve ends: the median of its last values."""
    return float(np.median(values[-max(least, int(len(values) * share)) :]))


def smooth(values: Floats, window: int) -> Floats:
    """Centred running median; the window shrinks symmetrically at both ends."""
    if len(values) == 0:
        return values
    half = min(window // 2, (len(values) - 1) // 2)
    if half == 0:
        return values.copy()
    middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1), axis=1)
    reach = range(half)
    head = [np.median(values[: 2 * at + 1]) for at in reach]
    tail = [np.median(values[len(values) - 2 * at - 1 :]) for at in reversed(reach)]
    return np.concatenate([head, middle, tail])


def trailing_mean(values: Floats, window: int) -> Floats:
    """Mean of each stretch of `window` values, shape (n - window + 1,); of a short curve, half of it at most."""
    width = max(1, min(window, len(values) // 2))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(values, width).mean(axis=1))


def swing(values: Floats) -> float:
    """Typical size of a curve's moves around its own trend: median of |x[i] - (x[i-1] + x[i+1]) / 2|.

    A straight trend gives 0, and one bump moves a median little; a curve that jumps back and forth by d gives d.
    """
    if len(values) < 3:
        return 0.0
    return float(np.median(np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2.0)))


def sigma(values: Floats) -> float:
    """Robust standard deviation, from the median absolute deviation."""
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values))))


def longest_run(mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, int]:
    """Start and length of the longest stretch of True; (0, 0) where there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    if edges.size == 0:
        return 0, 0
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    at = int(np.argmax(lengths))
    return int(starts[at]), int(lengths[at])


def falling_share(values: Floats) -> float:
    """Share of the moves that go down; 0.5 for noise around a level."""
    moves = np.diff(values)
    return float(np.mean(moves < 0)) if moves.size else 0.0
