"""How many channels each candidate keeps at a given pruning ratio. Pure."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from stages.compression.pruning.candidates import Candidate

Scope = Literal["global", "layer"]
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


def removals(candidates: Sequence[Candidate], kept: Widths) -> dict[str, list[int]]:
    """Root layer -> indices of the output channels that go; layers that keep all are left out."""
    pairs = zip(candidates, kept, strict=True)
    return {c.layer: c.removed(width) for c, width in pairs if width < c.channels}
