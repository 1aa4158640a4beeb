"""The learning rate of each optimizer step, and what watches the epochs' validation values.

Schedules count optimizer steps that were really taken, from 0 to total - 1, however many micro-batches each took; a
step that the fp16 scaler skips does not count. They are pure functions of the step, so a resume cannot make them jump.
`reduce_on_plateau` and early stopping depend on what validation gave: their whole state is a `Watched`, two values for
the checkpoint.

>>> rate = learning_rate(Fit(lr=1.0, schedule="warmup_linear", warmup_share=0.5), total_steps=8)
>>> [rate(step) for step in range(8)]
[0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
>>> plateaus = PlateauWatch(Plateau(factor=0.5, patience=2))
>>> state, factors = Watched(), []
>>> for val_loss in (0.9, 0.8, 0.8, 0.85, 0.7):
...     state, factor = plateaus.observe(state, val_loss)
...     factors.append(factor)
>>> factors, state
([1.0, 1.0, 1.0, 0.5, 1.0], Watched(best=0.7, bad_epochs=0))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from stages.config.fit import EarlyStopping, Fit, Plateau

WARMUP_SHARE = 0.1
RISE_SHARE = 0.3
CYCLES = 3
ONE_CYCLE_START = 25.0
"""The first rate of `one_cycle` is the peak divided by this."""
ONE_CYCLE_END = 1e4
"""And its last one the peak divided by this."""


def learning_rate(settings: Fit, total_steps: int) -> Callable[[int], float]:
    """The base learning rate of each step 0..total_steps - 1, as `settings.schedule` names it; positive at every step.

    `settings.lr` is the peak. `reduce_on_plateau` is constant here: its factors come from `PlateauWatch`.
    Raises `ValueError` when there is no step.
    """
    if total_steps < 1:
        raise ValueError(f"a schedule needs at least one step, got {total_steps}")
    peak = settings.lr
    rise = warmup_steps(total_steps, RISE_SHARE if settings.warmup_share is None else settings.warmup_share)
    warmup = warmup_steps(total_steps, WARMUP_SHARE if settings.warmup_share is None else settings.warmup_share)
    cycles = CYCLES if settings.cycles is None else settings.cycles
    schedules: dict[str, Callable[[int], float]] = {
        "warmup_cosine": partial(warmup_cosine, total=total_steps, warmup=warmup, peak=peak),
        "cosine": partial(warmup_cosine, total=total_steps, warmup=0, peak=peak),
        "cosine_restarts": partial(cosine_restarts, total=total_steps, cycles=cycles, peak=peak),
        "warmup_linear": partial(warmup_linear, total=total_steps, warmup=warmup, peak=peak),
        "one_cycle": partial(one_cycle, total=total_steps, rise=rise, peak=peak),
        "constant": partial(constant, peak=peak),
        "reduce_on_plateau": partial(constant, peak=peak),
    }
    return schedules[settings.schedule]


def warmup_cosine(step: int, total: int, warmup: int, peak: float) -> float:
    """Linear warm-up over `warmup` steps, then half a cosine to zero (Loshchilov & Hutter 2017, without restarts).

    `step` counts optimizer steps from 0 to total - 1, however many micro-batches each takes. The first step has
    peak / warmup, step `warmup` has the peak, and the last lies just above zero.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / (total - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def warmup_linear(step: int, total: int, warmup: int, peak: float) -> float:
    """Linear warm-up as in `warmup_cosine`, then a straight line to zero, which the step after the last would have."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / (total - warmup)


def cosine_restarts(step: int, total: int, cycles: int, peak: float) -> float:
    """Half cosines to zero, each from the peak (SGDR, Loshchilov & Hutter 2017, with T_mult = 1).

    Cycle k begins at step floor(k total / cycles), so that their lengths differ by one step at most. With fewer steps
    than cycles, every step is the beginning of one.
    """
    cycle = ((step + 1) * cycles - 1) // total
    begin, end = cycle * total // cycles, (cycle + 1) * total // cycles
    return warmup_cosine(step - begin, end - begin, 0, peak)


def one_cycle(step: int, total: int, rise: int, peak: float) -> float:
    """Half a cosine up from peak / 25, then half a cosine down to peak / 1e4 (Smith & Topin 2018, arXiv:1708.07120).

    The `rise` is the number of steps up to the peak, itself included (0 and 1: it begins there); the last step has
    peak / 1e4. The cosine in place of the paper's straight lines is what the field uses.
    """
    top = max(rise - 1, 0)
    if step < top:
        return _half_cosine(peak / ONE_CYCLE_START, peak, step / top)
    fall = total - 1 - top
    return _half_cosine(peak, peak / ONE_CYCLE_END, (step - top) / fall) if fall else peak


def constant(_step: int, peak: float) -> float:
    """The peak, at every step."""
    return peak


def warmup_steps(total: int, share: float) -> int:
    """Whole steps of warm-up; at least one step is left for the rest."""
    return min(round(total * share), total - 1)


@dataclass(frozen=True)
class Watched:
    """What a watch has seen so far: `dataclasses.asdict` gives JSON values, `Watched(**values)` takes them back."""

    best: float | None = None
    """None: no finite value yet."""

    bad_epochs: int = 0
    """Epochs in a row that were not better."""


def watch(state: Watched, value: float, *, min_delta: float, higher_is_better: bool) -> Watched:
    """The state after one more epoch. A value is better when it is so by more than `min_delta`; NaN and Inf never are.

    >>> seen = watch(Watched(best=0.5), 0.45, min_delta=0.1, higher_is_better=False)
    >>> seen
    Watched(best=0.5, bad_epochs=1)
    >>> should_stop(seen, patience=1)
    True
    """
    gain = math.inf if state.best is None else (value - state.best if higher_is_better else state.best - value)
    if math.isfinite(value) and gain > min_delta:
        return Watched(value, 0)
    return Watched(state.best, state.bad_epochs + 1)


def should_stop(state: Watched, patience: int) -> bool:
    """Whether the last `patience` epochs all were no better."""
    return state.bad_epochs >= patience


def watch_monitor(state: Watched, settings: EarlyStopping, val_loss: float, val_accuracy: float) -> Watched:
    """`watch` on the value that early stopping monitors; then ask `should_stop(state, settings.patience)`."""
    accuracy = settings.monitor == "val_accuracy"
    value = val_accuracy if accuracy else val_loss
    return watch(state, value, min_delta=settings.min_delta, higher_is_better=accuracy)


@dataclass(frozen=True)
class PlateauWatch:
    """Schedule `reduce_on_plateau`: sees each epoch's validation loss, says by how much the learning rate falls.

    Unlike torch's ReduceLROnPlateau, `patience` is the number of bad epochs that make a plateau (torch: one more).
    """

    settings: Plateau

    def observe(self, state: Watched, val_loss: float) -> tuple[Watched, float]:
        """The state after this epoch, and the factor on the learning rate from here on: 1.0, or the plateau's."""
        seen = watch(state, val_loss, min_delta=self.settings.min_delta, higher_is_better=False)
        if not should_stop(seen, self.settings.patience):
            return seen, 1.0
        return Watched(seen.best, 0), self.settings.factor


def _half_cosine(start: float, end: float, progress: float) -> float:
    """From `start` (progress 0) to `end` (progress 1)."""
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * progress))
