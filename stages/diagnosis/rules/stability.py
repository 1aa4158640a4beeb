"""Steps that are too big: oscillation, divergence, spikes."""

import math

import numpy as np

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level, sigma, start_level, swing
from stages.diagnosis.finding import Finding, scaled, significant, to
from stages.diagnosis.history import Floats, History
from stages.diagnosis.levels import near_chance

FLOOR_SHARE = 0.02
"""Swings below this share of ln C mean nothing, however small the run's own range has become."""
LEVEL_SHARE = 0.15
"""Swings below this share of the loss itself are those of a loss that is high and moves, not of one that jumps."""
TRAIN_SHARE = 0.03
"""The train loss must swing too: validation alone also swings for small, alternating or noisy validation sets."""
DIVERGED = 1.2
JUMP = 0.5
"""A spike lifts log(loss) by at least this (a factor of 1.65), and keeps it up for the next steps."""
AFTER = 5
LEARNED = 0.8
LR_RISE = 1.5
"""A loss that rises after the learning rate rose by this factor belongs to the schedule (warm restarts)."""


def oscillating(history: History, params: Diagnose) -> Finding | None:
    """Validation swings around its own trend by more than `oscillation` of the run's range, and training swings too.

    Looks at the second half only, after warm-up. The amplitude is taken around the trend, against the run's own range,
    and has a floor: measured against the mean of the curve it would accuse every healthy run that has converged.
    Source: AutoTrainer's "unstable loss", SageMaker's and the 20%-amplitude rule of practice, corrected as said.
    """
    if len(history.epochs) < 8:
        return None
    val, train = history.epochs.val_loss, history.epochs.train_loss
    half = len(val) // 2
    floor = FLOOR_SHARE * (history.chance_loss or abs(start_level(history.steps.loss)))
    val_range, train_range = _own_range(history, val), _own_range(history, train)
    val_swing, train_swing = swing(val[half:]), swing(train[half:])
    limit = max(params.oscillation * val_range, floor, LEVEL_SHARE * float(np.median(val[half:])))
    if val_swing <= limit or train_swing <= max(TRAIN_SHARE * train_range, floor / 2.0):
        return None
    evidence = {
        "validation_swing": significant(val_swing, 6), "limit": significant(limit, 6),
        "train_swing": significant(train_swing, 6), "range": significant(val_range, 6),
    }  # fmt: skip
    cause = (
        f"in the second half the validation loss jumps by {val_swing:.3g} from epoch to epoch, "
        f"more than {limit:.3g}, and the train loss with it: the steps are too big"
    )
    span = (int(history.epochs.step[half]), int(history.epochs.step[-1]))
    return Finding("oscillating", "fault", cause, evidence, span, scaled(history, "lr", 0.2, "smaller steps"), 0.8)


def _own_range(history: History, values: Floats) -> float:
    top = max(float(values[0]), history.chance_loss or 0.0)
    return max(top - float(values.min()), 1e-12)


def diverged(history: History, _: Diagnose) -> Finding | None:
    """The train loss ends above its start, or where no cross entropy can lie: below zero.

    Source: AutoTrainer's and SageMaker's divergence rules; cross entropy is never negative.
    """
    loss = history.steps.loss
    start, end = start_level(loss), end_level(loss)
    span = (int(history.steps.step[0]), int(history.steps.step[-1]))
    evidence = {"loss_at_start": significant(start, 6), "loss_at_end": significant(end, 6)}
    if history.chance_loss is not None and end < -1e-6:
        cause = f"the loss fell to {end:.3g}, but a cross entropy is never negative: its sign is turned"
        return Finding("diverged", "fatal", cause, evidence, span, [], 0.95)
    reference = max(start, history.chance_loss or 0.0)
    val = history.epochs.val_loss
    val_worse = bool(val.size) and end_level(val) > 2.0 * max(float(val[0]), reference)
    train_high = end > 0.5 * reference
    if end > DIVERGED * reference or (val_worse and train_high and near_chance(history)):
        cause = f"the loss ends at {end:.3g}, above its start of {start:.3g}: the learning rate is too high"
        clip = [] if history.clip_norm else to(history, "clip_norm", 1.0, "bounds a single step")
        prescription = [*scaled(history, "lr", 0.1, "smaller steps"), *clip]
        return Finding("diverged", "fatal", cause, evidence, span, prescription, 0.8)
    return None


def spike(history: History, params: Diagnose) -> Finding | None:
    """A sudden rise of the loss from which the run does not recover."""
    found = _find_spike(history, params)
    return _report(history, found) if found and not found["recovered"] else None


def spike_recovered(history: History, params: Diagnose) -> Finding | None:
    """A sudden rise of the loss that lasts for some steps and then passes."""
    found = _find_spike(history, params)
    return _report(history, found) if found and found["recovered"] else None


def _find_spike(history: History, params: Diagnose) -> dict[str, float] | None:
    """The worst spike, in log(loss) against the steps before it.

    Hard batches are no spike, even several in a row: all but one of the next steps must be raised too, since then the
    weights were hurt, and the steps before must not have had the like. Robust z
    (median and MAD) of the log loss, after the loss-spike detection of large language-model training.
    """
    loss = history.steps.loss
    window = int(np.clip(len(loss) // 20, 20, 200))
    if len(loss) < 3 * window or loss.min() < 0:
        return None
    scale = min(abs(start_level(loss)), history.chance_loss or math.inf) or 1.0
    curve = np.log(loss + 0.02 * scale)
    candidates = np.flatnonzero(curve[window:] - _trailing_median(curve, window) > JUMP) + window
    worst: dict[str, float] | None = None
    for at in map(int, candidates):
        before, after = curve[at - window : at], curve[at + 1 : at + 1 + AFTER]
        base = float(np.median(before))
        # The scatter around the local line, not around the level: a falling curve is not a noisy one.
        spread = max(sigma(np.diff(before)) / np.sqrt(2.0), sigma(before) / 2.0, 0.05)
        z = (float(curve[at]) - base) / spread
        lasting = len(after) == AFTER and float(np.sort(after)[1]) - base > max(3.0 * spread, JUMP / 2.0)
        learned = float(np.median(loss[at - window : at])) < LEARNED * scale  # Else there is nothing to come back to.
        stands_out = lasting and _stands_out(before, float(curve[at]), after)
        if z < params.spike_z or not (stands_out and learned) or _expected(history, at, window):
            continue
        if worst is None or z > worst["z"]:
            end = float(np.median(curve[-max(AFTER, len(curve) // 20) :]))
            worst = {"z": z, "at": float(at), "base": base, "recovered": float(end <= base + JUMP)}
    return worst


def _stands_out(before: Floats, peak: float, after: Floats) -> bool:
    """True when neither the peak nor what follows it has its like among the steps before, hard batches and all."""
    usual = float(np.median(np.lib.stride_tricks.sliding_window_view(before, AFTER), axis=1).max())
    return peak > float(before.max()) + JUMP / 2.0 and float(np.median(after)) > usual + JUMP / 4.0


def _trailing_median(curve: Floats, window: int) -> Floats:
    """Median of the `window` values before each position from `window` on; shape (n - window,)."""
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(curve[:-1], window), axis=1))


def _expected(history: History, at: int, window: int) -> bool:
    """True when the loss had to rise here: the weights were changed from outside, or the learning rate went up."""
    step = int(history.steps.step[at])
    if any(restart <= step <= restart + window for restart in history.restarts):
        return True
    lr = history.steps.lr
    return bool(lr.size) and float(lr[at]) > LR_RISE * float(lr[max(0, at - window) : at].min())


def _report(history: History, found: dict[str, float]) -> Finding:
    at, recovered = int(found["at"]), bool(found["recovered"])
    loss, steps = history.steps.loss, history.steps.step
    step = int(steps[at])
    window = int(np.clip(len(loss) // 20, 20, 200))
    before, end = float(np.median(loss[at - window : at])), end_level(loss)
    evidence = {
        "step": step, "loss": significant(float(loss[at]), 6), "loss_before": significant(before, 6),
        "loss_at_end": significant(end, 6), "robust_z": significant(found["z"], 4),
    }  # fmt: skip
    what = f"at step {step} the loss jumps from {before:.3g} to {loss[at]:.3g}"
    clip = to(history, "clip_norm", 1.0, "bounds what one batch can do") if not history.clip_norm else []
    if recovered:
        cause = f"{what} and comes back later: one bad batch, or a step that was too big"
        return Finding("spike_recovered", "warning", cause, evidence, (step, int(steps[-1])), clip, 0.7)
    cause = f"{what} and does not come back (it ends at {end:.3g}): a bad batch or too big a step broke the weights"
    prescription = [*scaled(history, "lr", 0.3, "smaller steps"), *clip]
    return Finding("spike", "fault", cause, evidence, (step, int(steps[-1])), prescription, 0.7)
