"""Ranges of activations from what was seen of them: pure functions over per-batch extremes and histograms."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Range = tuple[float, float]

BINS = 2048
LEVELS = 128
"""Quantized levels of the positive half in the entropy calibration."""


@dataclass
class Extremes:
    """Least and greatest value of one tensor, batch by batch."""

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)

    def see(self, values: npt.NDArray[np.float32]) -> None:
        """Takes in one batch."""
        if values.size:
            self.lows.append(float(values.min()))
            self.highs.append(float(values.max()))

    def whole(self) -> Range:
        """From the least to the greatest value of all."""
        return min(self.lows), max(self.highs)

    def averaged(self) -> Range:
        """Means of the batches' extremes: one corrupt sample moves the range by its share only."""
        return float(np.mean(self.lows)), float(np.mean(self.highs))


def histogram(values: npt.NDArray[np.float32], whole: Range) -> npt.NDArray[np.int64]:
    """Counts (BINS,) of one batch between the tensor's extremes."""
    low, high = _open(whole)
    # In float64: np.histogram places its edges in float32, where a narrow range has fewer numbers than bins.
    bins = ((values.ravel().astype(np.float64) - low) * (BINS / (high - low))).astype(np.int64)
    return np.bincount(bins.clip(0, BINS - 1), minlength=BINS)


def percentile(counts: npt.NDArray[np.int64], whole: Range, share: float = 0.9999) -> Range:
    """The range that keeps `share` of all values, what is cut off split evenly between both ends."""
    low, high = _open(whole)
    edges = np.linspace(low, high, BINS + 1)
    below = np.cumsum(counts) / counts.sum()
    cut = (1.0 - share) / 2
    first = int(np.searchsorted(below, cut, side="right"))
    last = int(np.searchsorted(below, 1.0 - cut, side="left"))
    return float(edges[first]), float(edges[min(last, BINS - 1) + 1])


def entropy(counts: npt.NDArray[np.int64], whole: Range) -> Range:
    """The range whose clipped and quantized distribution is nearest to the original (Kullback-Leibler).

    Searches a bound T on |x|; the range is the tensor's own, cut at -T and T. After Migacz, "8-bit inference with
    TensorRT" (2017), with 2048 bins: with as many bins as levels, the search can only return the extremes.
    """
    low, high = _open(whole)
    centers = np.abs(low + (np.arange(BINS) + 0.5) * (high - low) / BINS)
    reach = max(abs(low), abs(high))
    folded, edges = np.histogram(centers, bins=BINS, range=(0.0, reach), weights=counts.astype(np.float64))
    sizes = range(LEVELS, BINS + 1, LEVELS // 2)
    best = min(sizes, key=lambda size: _divergence(folded, size))
    bound = float(edges[best])
    return max(low, -bound), min(high, bound)


def _divergence(counts: Floats, size: int) -> float:
    """KL(original clipped to its first `size` bins || the same in LEVELS steps)."""
    clipped = counts[:size].copy()
    clipped[-1] += counts[size:].sum()
    starts = np.linspace(0, size, LEVELS + 1).astype(np.int64)[:-1]
    used = (counts[:size] > 0).astype(np.float64)
    sums, filled = np.add.reduceat(counts[:size], starts), np.add.reduceat(used, starts)
    step = np.repeat(np.divide(sums, filled, out=np.zeros_like(sums), where=filled > 0), np.diff([*starts, size]))
    quantized = step * used
    if quantized.sum() == 0:
        return float("inf")
    original, approximate = clipped / clipped.sum(), quantized / quantized.sum()
    seen = original > 0
    return float(np.sum(original[seen] * np.log(original[seen] / np.maximum(approximate[seen], 1e-12))))


def _open(whole: Range) -> Range:
    """The range itself, or a narrow one around a constant."""
    low, high = whole
    return (low, high) if high > low else (low, low + 1e-6 * max(1.0, abs(low)))
