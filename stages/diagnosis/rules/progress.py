"""How far the loss came: not learning, too slow, or at a plateau that is too high."""

import numpy as np

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level, falling_share, start_level
from stages.diagnosis.finding import Change, Finding, scaled, significant, to
from stages.diagnosis.history import History
from stages.diagnosis.levels import final_accuracy, low_accuracy, near_chance

STEADY = 0.8
"""Share of the epochs in which the loss falls: above it the decline is a trend, not noise."""
LATE_SHARE = 0.25
"""A run that gains this share of its whole progress in its second half has not reached a plateau."""
MOSTLY_CLIPPED = 0.9
WAS_BETTER = 0.8
"""A run whose loss was once below this share of its end has fallen back."""


def not_learning(history: History, params: Diagnose) -> Finding | None:
    """The train loss fell by less than `min_progress` of its start and the model still guesses.

    For C classes the start is at most ln C, so that a wild first step is not taken for progress; accuracy near chance
    is required, so that a fine-tuning that gains only a little is not accused.
    Source: SageMaker Debugger's LossNotDecreasing, AutoTrainer's "slow convergence", made task-aware.
    """
    loss = history.steps.loss
    start = start_level(loss)
    if history.chance_loss is not None:
        start = min(start, history.chance_loss)
    end = end_level(loss)
    progress = (start - end) / abs(start) if start else 0.0
    if progress >= params.min_progress or not near_chance(history):
        return None
    evidence = {
        "loss_at_start": significant(start_level(loss), 6),
        "loss_at_end": significant(end, 6),
        "progress": significant(progress, 3),
    }
    if history.chance_loss is not None:
        evidence |= {"ln_classes": significant(history.chance_loss, 6), "accuracy": final_accuracy(history) or 0.0}
    why, prescription, confidence = _why_not_learning(history)
    span = (int(history.steps.step[0]), int(history.steps.step[-1]))
    level = f", about ln C = {history.chance_loss:.3g}" if history.chance_loss else ""
    cause = f"the loss went from {start_level(loss):.3g} to {end:.3g}{level}: the model still guesses; {why}"
    return Finding("not_learning", "fault", cause, evidence, span, prescription, confidence)


def _why_not_learning(history: History) -> tuple[str, list[Change], float]:
    clipped, norm, loss = history.steps.clipped, history.steps.grad_norm, history.steps.loss
    if _too_tightly_clipped(history):
        bound = significant(float(np.median(norm)))
        why = (
            f"{clipped.mean():.0%} of the steps were clipped to a norm of {history.clip_norm:g}, so that none moves far"
        )
        return why, to(history, "clip_norm", bound, "the median of the unclipped norms"), 0.7
    if _steadily_falling(history):
        return "it falls steadily, but far too slowly", scaled(history, "lr", 30.0, "larger steps"), 0.7
    peak = float(loss[: max(10, len(loss) // 5)].max())
    if history.chance_loss is not None and peak > 2.0 * history.chance_loss:
        why = f"the first steps threw the loss up to {peak:.3g}: they were too big, and units died"
        return why, scaled(history, "lr", 0.1, "smaller steps"), 0.7
    why = (
        "labels that have nothing to do with the inputs, inputs or weights of the wrong scale, dead units, or steps of "
        "the wrong size"
    )
    changes = [*scaled(history, "lr", 0.1, "the more frequent of the two wrong sizes"), *_less_decay(history)]
    return why, changes, 0.4


def _too_tightly_clipped(history: History) -> bool:
    """True when nearly every step was cut down; of AdamW only the direction counts, so that it does not mind."""
    clipped = history.steps.clipped
    return bool(clipped.size) and float(clipped.mean()) > MOSTLY_CLIPPED and history.optimizer == "sgd"


def lr_too_low(history: History, params: Diagnose) -> Finding | None:
    """The loss falls steadily all along, and the run ends with low accuracy before any plateau.

    Source: the "learning rate too low" shape of the classic loss curves (Stanford CS231n, Li & Karpathy).
    """
    if len(history.epochs) < 6 or low_accuracy(history, params) is None or not _steadily_falling(history):
        return None
    loss = history.epochs.train_loss
    evidence = {
        "falling_epochs": significant(falling_share(loss), 3),
        "gain_in_second_half": significant(_late_share(history), 3),
        "train_loss_at_end": significant(float(loss[-1]), 6),
        "accuracy": final_accuracy(history) or 0.0,
    }
    if _too_tightly_clipped(history):
        reason, prescription, _ = _why_not_learning(history)
    else:
        reason = "the steps are too small, or too few"
        prescription = [
            *scaled(history, "lr", 10.0, "larger steps"),
            *scaled(history, "epochs", 2.0, "if larger steps make the loss unsteady"),
        ]
    cause = (
        f"the train loss fell in {falling_share(loss):.0%} of the epochs and won {_late_share(history):.0%} of its "
        f"progress in the second half, yet accuracy is still low: {reason}"
    )
    span = (int(history.steps.step[0]), int(history.steps.step[-1]))
    return Finding("lr_too_low", "fault", cause, evidence, span, prescription, 0.7)


def underfitting(history: History, params: Diagnose) -> Finding | None:
    """Train and validation both reach a plateau at low accuracy.

    Source: the "underfitting" shape of the classic loss curves (Goodfellow et al. 2016, chapter 5).
    """
    bound = low_accuracy(history, params)
    if bound is None or len(history.epochs) < params.min_epochs or _steadily_falling(history):
        return None
    if not_learning(history, params) is not None:  # It says more.
        return None
    accuracy = final_accuracy(history) or 0.0
    loss = history.epochs.train_loss
    evidence = {"accuracy": accuracy, "bound": significant(bound, 6), "train_loss": significant(end_level(loss), 6)}
    half = int(history.epochs.step[len(history.epochs) // 2])
    if float(loss.min()) < WAS_BETTER * end_level(loss):
        reason = f"it was better before (train loss {loss.min():.3g}), so that the steps are too big"
        prescription = scaled(history, "lr", 0.2, "smaller steps")
    else:
        reason = "the model is too small, regularised too strongly, or fed with inputs that hide the answer"
        prescription = [*_bigger_model(history), *_less_decay(history)]
    cause = (
        f"train and validation accuracy end at {accuracy:.1%} at most, below {bound:.1%}, and the loss has stopped "
        f"falling: {reason}"
    )
    return Finding("underfitting", "fault", cause, evidence, (half, int(history.epochs.step[-1])), prescription, 0.6)


def _steadily_falling(history: History) -> bool:
    loss = history.epochs.train_loss
    enough = len(loss) >= 6 and bool(np.isfinite(loss).all()) and float(loss.min()) >= 0
    return enough and loss[-1] < loss[0] and falling_share(loss) >= STEADY and _late_share(history) >= LATE_SHARE


def _late_share(history: History) -> float:
    loss = history.epochs.train_loss
    whole = float(loss[0] - loss[-1])
    return float(loss[len(loss) // 2] - loss[-1]) / whole if whole > 0 else 0.0


def _bigger_model(history: History) -> list[Change]:
    prefix = {"train": "model.kwargs", "distill": "distill.student.kwargs"}.get(history.stage, "")
    for name in ("width", "hidden", "depth"):
        current = history.settings.get(f"{prefix}.{name}")
        if isinstance(current, int) and name != "depth":
            return [Change(f"{prefix}.{name}", current, 2 * current, "more capacity")]
    ratio = history.settings.get("prune.macs_ratio")
    if history.stage == "prune" and isinstance(ratio, float):
        return [Change("prune.macs_ratio", ratio, significant((1.0 + ratio) / 2.0), "prune less")]
    return []


def _less_decay(history: History) -> list[Change]:
    decay = history.settings.get(f"{history.fit_key}.weight_decay")
    return (
        scaled(history, "weight_decay", 0.1, "less regularisation") if isinstance(decay, float) and decay > 0.1 else []
    )
