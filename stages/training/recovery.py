"""What a training has recovered from, and the rules that look at what it recorded. Each recovery is an event."""

import math
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from stages.config.fit import Fit
from stages.config.recovery import Amplitude
from stages.training.history import NonFinite, Row

LOOK_EVERY = 50
"""Steps between two looks at what was recorded: fixed, so that what follows from it repeats after a resume."""

STEEP = 5.0
"""Times `clip_norm`: a gradient norm above it is far too large."""

SKIPPED_AT_MOST = 40
"""Steps that float16 may skip in a row: each halves the loss scale, which begins at 2^16."""

AROUND = 5
"""Steps before and after an anomaly whose layers are recorded."""


@dataclass
class Condition:
    """What recoveries have changed. Goes into every checkpoint, and is as it was after a resume."""

    micro_batch: int
    clipping: bool
    clip_due: bool = False
    """Clipping is switched on at the next look."""

    lr_factor: float = 1.0
    """Times the schedule's learning rate; only ever falls."""

    rollbacks: int = 0
    steep_steps: int = 0
    """Steps in a row with a norm far above the bound."""

    steep_told: bool = False
    """The present stretch of such steps is an event already."""

    skipped: int = 0
    """Steps that float16 did not take: the schedule does not count them."""

    skipped_in_a_row: int = 0

    watch_layers: tuple[int, int] = (0, -1)
    """First and last step around the last anomaly, whose layers are recorded."""

    anomaly: bool = False
    """An anomaly was seen since the last look: the layers of the next steps are recorded."""

    ended: str = ""
    """Why a rule has ended the training before its last epoch; empty: none has."""

    end_status: str = "finished"
    """`stopped` where that is no good end."""

    plateau: dict[str, Any] = field(default_factory=dict)
    stopping: dict[str, Any] = field(default_factory=dict)
    val_losses: list[float] = field(default_factory=list)
    """Of the last epochs since the amplitude rule last acted."""

    @classmethod
    def start(cls, settings: Fit, micro_batch: int) -> "Condition":
        """Nothing has happened yet."""
        return cls(micro_batch=micro_batch, clipping=settings.clip and settings.clip_norm is not None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Condition":
        """The inverse of `as_dict`."""
        return cls(**{**values, "watch_layers": tuple(values["watch_layers"])})

    def look(self, step: int) -> None:
        """After this step (always the same ones, whatever was saved or resumed), what was seen takes effect."""
        if self.clip_due:
            self.clipping, self.clip_due = True, False
        if self.anomaly:
            self.watch_layers, self.anomaly = (step, step + AROUND), False


def anomaly_around(step: int) -> tuple[int, int]:
    """First and last step of those whose layers are recorded around an anomaly."""
    return step - AROUND, step + AROUND


def look_at_norms(condition: Condition, settings: Fit, rows: list[Row]) -> list[Row]:
    """Steep gradients: counts on over `rows`; the events that follow. Changes the condition.

    Above five times `clip_norm` for `recovery.clip_after_steps` steps in a row: clipping is due, or where it is on
    already, that is an event.
    """
    bound = settings.clip_norm
    if bound is None:
        return []
    events = []
    for row in rows:
        if row["skipped"]:
            continue
        norm = float(row["grad_norm"])
        if not norm > STEEP * bound:  # NaN is no steep one.
            condition.steep_steps, condition.steep_told = 0, False
            continue
        condition.steep_steps += 1
        if condition.steep_steps < settings.recovery.clip_after_steps or condition.steep_told:
            continue
        condition.steep_steps, condition.steep_told = 0, True
        on = condition.clipping or condition.clip_due
        condition.clip_due = not condition.clipping
        condition.anomaly = True
        events.append(
            {
                "kind": "steep_gradients" if on else "clipping_switched_on",
                "step": row["step"],
                "epoch": row["epoch"],
                "what": f"gradient norm above {STEEP:g} times clip_norm {bound:g} for "
                f"{settings.recovery.clip_after_steps} steps, last {norm:.4g}",
            }
        )
    return events


def only_overflows(condition: Condition, rows: list[Row]) -> NonFinite | None:
    """float16: so many steps skipped in a row that the loss scale cannot be at fault. Changes the condition."""
    for row in rows:
        condition.skipped_in_a_row = condition.skipped_in_a_row + 1 if row["skipped"] else 0
        if condition.skipped_in_a_row == SKIPPED_AT_MOST:
            what = f"gradients that are not finite in {SKIPPED_AT_MOST} steps in a row, whatever the loss scale"
            return NonFinite(row["step"], row["epoch"], what)
    return None


def swings(losses: list[float], rule: Amplitude) -> bool:
    """Whether the last losses swing: they turned at least twice, and spread over more than `share` of their mean."""
    last = losses[-rule.epochs :]
    if len(last) < rule.epochs or not all(map(math.isfinite, last)):
        return False
    steps = [later - earlier for earlier, later in pairwise(last)]
    turns = sum(before * after < 0 for before, after in pairwise(steps))
    return turns >= 2 and max(last) - min(last) > rule.share * sum(last) / len(last)
