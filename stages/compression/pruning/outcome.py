"""What a pruning came to: which round's model goes on, and what to say about it. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stages.compression.pruning.rounds import Round
from stages.models.counting import Counts

ROUNDING = 1e-9
"""A drop of just the bound is allowed: 0.98 - 0.96 is a little more than 0.02 in floating point."""


@dataclass(frozen=True)
class Unpruned:
    """The model that came in."""

    counts: Counts
    accuracy: float
    """On the validation split."""


@dataclass(frozen=True)
class Bounds:
    """What the pruned model must keep."""

    macs_ratio: float
    max_drop: float
    on_miss: Literal["fail", "keep_best"]


@dataclass(frozen=True)
class Outcome:
    """Which round's model goes on, and why."""

    chosen: Round | None
    """None: the unpruned model."""
    reason: str
    """For status.json."""
    missed: bool = False
    """Whether a bound was missed."""
    gate: str | None = None
    """Why the gate fails."""


def unreachable(before: Counts, nearest: Counts, why: str, bounds: Bounds) -> str:
    """The sentence for a target that no pruning reaches."""
    required = f"the multiply-accumulates must fall to {bounds.macs_ratio:.2f}x of the unpruned model's"
    ratio = nearest.macs / before.macs
    if nearest.macs == before.macs:
        return f"{required}, but {why}; switch prune.enabled off, or set prune.on_miss: keep_best to hand the model on"
    return (
        f"{required}, the nearest that can be reached is {ratio:.3f}x ({why}); set prune.macs_ratio to "
        f"{math.ceil(ratio * 100) / 100:.2f} or more, lower prune.round_to, or set prune.on_miss: keep_best"
    )


def decide(before: Unpruned, rounds: Sequence[Round], bounds: Bounds) -> Outcome:
    """The last round's model where it keeps the bounds, or where it stopped itself (the diagnosis knows why).

    Otherwise `fail` leaves it to be looked at behind a failed gate, and `keep_best` takes the smallest model within
    `max_drop`.
    """
    last = rounds[-1]
    missed = _missed(before, last, bounds)
    if last.fitted.status != "finished" or not missed:
        return Outcome(last, f"{len(rounds)} rounds of pruning and fine-tuning, the last one: {last.fitted.reason}")
    if bounds.on_miss == "fail":
        advice = "train longer (prune.fit.epochs), prune less (prune.macs_ratio), allow more (prune.max_drop), or set "
        return Outcome(last, missed, missed=True, gate=f"{missed}; {advice}prune.on_miss: keep_best")
    good = [each for each in rounds if _drop(before, each) <= bounds.max_drop + ROUNDING]
    if not good:
        reason = f"{missed}; no smaller model keeps prune.max_drop, so the unpruned one is handed on"
        return Outcome(None, reason, missed=True)
    best = min(good, key=lambda each: each.pruned.counts.macs)
    kept = f"kept the smallest model within prune.max_drop, {_ratio(before, best):.2f}x"
    return Outcome(best, f"{missed}; {kept}", missed=True)


def _missed(before: Unpruned, last: Round, bounds: Bounds) -> str:
    """Which bounds the round's model misses, as a sentence; empty when none."""
    said = []
    if _ratio(before, last) > bounds.macs_ratio:
        why = f" ({last.pruned.reason})" if last.pruned.reason else ""
        said.append(f"the MACs must fall to {bounds.macs_ratio:.2f}x, they fell to {_ratio(before, last):.2f}x{why}")
    if _drop(before, last) > bounds.max_drop + ROUNDING:
        said.append(
            f"the validation accuracy may fall by {bounds.max_drop:.2%} points, it fell by {_drop(before, last):.2%} "
            f"({before.accuracy:.2%} -> {last.fitted.val.accuracy:.2%})"
        )
    return " and ".join(said)


def _ratio(before: Unpruned, each: Round) -> float:
    return each.pruned.counts.macs / before.counts.macs


def _drop(before: Unpruned, each: Round) -> float:
    return before.accuracy - each.fitted.val.accuracy
