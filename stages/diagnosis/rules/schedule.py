"""Learning-rate schedules that cannot have been meant."""

import numpy as np

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level, start_level
from stages.diagnosis.finding import Finding, significant, to
from stages.diagnosis.history import History
from stages.diagnosis.levels import low_accuracy

LATE_PEAK = 0.9
"""A warm-up that lasts this share of the run never ends."""
GONE = 0.01
"""Below this share of its peak the learning rate has gone ..."""
GONE_BEFORE = 0.25
"""... and, before this share of the run, too early (a decay per epoch applied per batch)."""
JUMP = 5.0


def schedule(history: History, params: Diagnose) -> Finding | None:
    """The learning rate warms up to the very end, is gone at once, or jumps up and the loss does not come back.

    Source: the "slow decline, then a jump" and "flat after an early drop" shapes of the classic loss curves.
    """
    lr = history.steps.lr
    if len(lr) < 20 or lr.max() <= 0:
        return None
    return _endless_warmup(history) or _gone_early(history, params) or _jump(history)


def _endless_warmup(history: History) -> Finding | None:
    lr, steps = history.steps.lr, history.steps.step
    peak = int(np.argmax(lr))
    if peak < LATE_PEAK * len(lr) or lr[0] > 0.5 * lr[peak]:
        return None
    evidence = {"peak_step": int(steps[peak]), "steps": len(lr), "lr_at_start": significant(float(lr[0]), 4)}
    cause = (
        "the learning rate rises to the very end: the warm-up is as long as the run, and nothing is refined after it"
    )
    change = to(history, "warmup_share", 0.1, "the rest of the run then anneals")
    return Finding("schedule", "fault", cause, evidence, (int(steps[0]), int(steps[-1])), change, 0.9)


def _gone_early(history: History, params: Diagnose) -> Finding | None:
    lr, steps = history.steps.lr, history.steps.step
    peak = int(np.argmax(lr))
    alive = np.flatnonzero(lr >= GONE * lr[peak])
    gone = int(alive[-1]) + 1
    loss = history.steps.loss
    unlearned = end_level(loss) > 0.5 * start_level(loss) or low_accuracy(history, params) is not None
    if gone > GONE_BEFORE * len(lr) or not unlearned:
        return None
    evidence = {"gone_at_step": int(steps[gone]), "steps": len(lr), "lr_at_end": significant(float(lr[-1]), 4)}
    cause = (
        f"the learning rate is below 1% of its peak from step {steps[gone]} of {steps[-1]} on, and the loss is still "
        "high: it decays far too fast, as when a decay per epoch is applied per batch"
    )
    return Finding("schedule", "fault", cause, evidence, (int(steps[gone]), int(steps[-1])), [], 0.9)


def _jump(history: History) -> Finding | None:
    lr, steps, loss = history.steps.lr, history.steps.step, history.steps.loss
    early = len(lr) // 20  # A warm-up may start anywhere.
    ratios = lr[early + 1 :] / np.maximum(lr[early:-1], 1e-30)
    at = int(np.argmax(ratios)) + early + 1
    highest_before = float(lr[:at].max())
    if ratios.max() < JUMP or lr[at] < JUMP * highest_before:  # A restart only returns to its former height.
        return None
    before = float(np.median(loss[max(0, at - 20) : at]))
    end = end_level(loss)
    if end < 1.5 * before:
        return None
    evidence = {
        "step": int(steps[at]), "lr_before": significant(float(lr[at - 1]), 4),
        "lr_after": significant(float(lr[at]), 4), "loss_before": significant(before, 6),
        "loss_at_end": significant(end, 6),
    }  # fmt: skip
    rise = f"from {lr[at - 1]:.3g} to {lr[at]:.3g}"
    cause = f"at step {steps[at]} the learning rate jumps {rise}, and the loss never comes back"
    return Finding("schedule", "fault", cause, evidence, (int(steps[at]), int(steps[-1])), [], 0.9)
