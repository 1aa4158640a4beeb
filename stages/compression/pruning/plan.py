"""How many channels each candidate keeps at a given pruning ratio. Pure."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from stages.compression.pruning.candidates import Candidate

Scope = Literal["global", "layer"]
STEPS = 256
"""The pruning ratio is searched on a grid of so many steps."""

Widths = tuple[int, ...]
"""Channels kept, in the order of the candidates."""


def widths(candidates: Sequence[Candidate], ratio: float, scope: Scope) -> Widths:
    """Channels kept when the share `ratio` of all ranked positions goes, rounded by each candidate's unit.

    `global` compares the scores of all candidates, `layer` takes the same share from each. A larger ratio never keeps
    more.
    """
    if scope == "layer":
        return tuple(c.kept(int(len(c.scores) * ratio)) for c in candidates)
    every = np.sort(np.concatenate([c.scores for c in candidates]))
    gone = int(len(every) * ratio)
    if gone == 0:
        return tuple(c.channels for c in candidates)
    threshold = every[gone - 1]
    return tuple(c.kept(int((c.scores <= threshold).sum())) for c in candidates)


def narrowest(candidates: Sequence[Candidate]) -> Widths:
    """The fewest channels that each candidate may keep."""
    return tuple(c.least for c in candidates)


def fitting(candidates: Sequence[Candidate], scope: Scope, cost: Callable[[Widths], float], bound: float) -> Widths:
    """The widths of the smallest pruning ratio whose cost is at most `bound`; `narrowest` where there is none.

    `cost` must not grow when channels go.
    """
    low, high = 0, STEPS  # `high` reaches the bound if anything does; `low` does not.
    best = narrowest(candidates)
    if cost(best) > bound:
        return best
    while high - low > 1:
        middle = (low + high) // 2
        kept = widths(candidates, middle / STEPS, scope)
        if cost(kept) <= bound:
            high, best = middle, kept
        else:
            low = middle
    return _given_back(best, widths(candidates, low / STEPS, scope), candidates, cost, bound)


def _given_back(
    kept: Widths, above: Widths, candidates: Sequence[Candidate], cost: Callable[[Widths], float], bound: float
) -> Widths:
    """Widths between `kept` (within the bound) and `above` (beyond it): the most important channels come back first.

    Between two steps of the ratio several layers may lose a whole unit at once, more than the bound asks for.
    """
    for i in sorted(range(len(kept)), key=lambda i: -candidates[i].score_of(kept[i], above[i])):
        unit = candidates[i].unit
        for width in (above[i], *range((above[i] - 1) // unit * unit, kept[i], -unit)):
            attempt = (*kept[:i], width, *kept[i + 1 :])
            if width > kept[i] and cost(attempt) <= bound:
                kept = attempt
                break
    return kept


def removals(candidates: Sequence[Candidate], kept: Widths) -> dict[str, list[int]]:
    """Root layer -> indices of the output channels that go; layers that keep all are left out."""
    pairs = zip(candidates, kept, strict=True)
    return {c.layer: c.removed(width) for c, width in pairs if width < c.channels}
