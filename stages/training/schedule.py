"""The learning rate of each optimizer step."""

import math


def warmup_cosine(step: int, total: int, warmup: int, peak: float) -> float:
    """Linear warm-up over `warmup` steps, then half a cosine to zero (Loshchilov & Hutter 2017, without restarts).

    `step` counts optimizer steps from 0 to total - 1, however many micro-batches each takes. The first step has
    peak / warmup, step `warmup` has the peak, and the last lies just above zero.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_steps(total: int, share: float) -> int:
    """Whole steps of warm-up; at least one step is left for the rest."""
    return min(round(total * share), total - 1)
