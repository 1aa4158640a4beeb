"""Mean and standard deviation for the normalisation: exact integers for uint8, float64 in chunks for float32."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data.prepared import Indices

CHUNK_ROWS = 1024
LEVELS = 256
Moments = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and population standard deviation, one for each channel or column."""


def histogram(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """How often each level occurs in each channel of (..., C): int64 (C, 256)."""
    channels = images.reshape(-1, images.shape[-1])
    return np.stack([np.bincount(channels[:, c], minlength=LEVELS) for c in range(channels.shape[1])]).astype(np.int64)


def moments_of_histogram(counts: npt.NDArray[np.int64]) -> Moments:
    """From a histogram (C, 256), of values / 255. Exact: the sums are integers of any size."""
    pairs = [_moments([int(n) for n in channel]) for channel in counts]
    return tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs)


def _moments(counts: list[int]) -> tuple[float, float]:
    total = sum(counts)
    first = Fraction(sum(level * n for level, n in enumerate(counts)), total * 255)
    second = Fraction(sum(level * level * n for level, n in enumerate(counts)), total * 255 * 255)
    variance = second - first * first
    return float(first), math.sqrt(variance) if variance else 1.0


def moments(samples: npt.NDArray[Any], indices: Indices) -> Moments:
    """Over the samples at `indices`, (N, H, W, C) per channel or (N, D) per column; a std of 0 becomes 1.

    uint8 is taken as value / 255. Read in chunks, so that memory-mapped samples need not fit into memory.
    """
    parts = [indices[start : start + CHUNK_ROWS] for start in range(0, len(indices), CHUNK_ROWS)]
    if samples.dtype == np.uint8:
        counts = np.zeros((samples.shape[-1], LEVELS), dtype=np.int64)
        for part in parts:
            counts += histogram(samples[part])
        return moments_of_histogram(counts)
    return _float_moments(samples, parts)


def _float_moments(samples: npt.NDArray[Any], parts: list[Indices]) -> Moments:
    width = samples.shape[-1]
    total, squares = np.zeros(width), np.zeros(width)
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    count = 0
    for part in parts:
        rows = _rows(samples, part)
        total += rows.sum(axis=0)
        low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        count += len(rows)
    mean = np.where(low == high, low, total / count)
    for part in parts:  # A second pass: the difference of two large sums would lose the variance.
        squares += np.square(_rows(samples, part) - mean).sum(axis=0)
    std = np.sqrt(squares / count)
    std[(low == high) | (std == 0.0)] = 1.0
    return tuple(map(float, mean)), tuple(map(float, std))


def _rows(samples: npt.NDArray[Any], part: Indices) -> npt.NDArray[np.float64]:
    return samples[part].reshape(-1, samples.shape[-1]).astype(np.float64)
