"""What the model gives out: probabilities in place of logits, or only a few of the classes."""

import math

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level
from stages.diagnosis.finding import Finding, significant
from stages.diagnosis.history import History

F1_SHARE = 0.6
"""Macro F1 below this share of accuracy: whole classes are never predicted."""


def double_softmax(history: History, _: Diagnose) -> Finding | None:
    """Accuracy is good, yet the loss rests on the lowest value that a softmax of a softmax allows.

    With the outputs p already in [0, 1], cross entropy cannot fall below ln(e + C - 1) - 1: 1.46 for 10 classes.
    """
    if history.chance_loss is None or not history.epochs.val_accuracy.size:
        return None
    floor = math.log(math.e + (history.classes or 2) - 1) - 1.0
    accuracy, val = end_level(history.epochs.val_accuracy), end_level(history.epochs.val_loss)
    lowest = float(history.steps.loss.min())
    smoothed = float(history.settings.get(f"{history.fit_key}.label_smoothing") or 0.0)
    on_floor = 0.99 * floor <= val <= 1.12 * floor and (smoothed > 0 or lowest >= 0.99 * floor)
    # The best that such outputs allow goes with this accuracy: every wrong sample costs at most 1 more.
    if not on_floor or val - floor > 1.5 * (1.0 - accuracy) + 0.02 or accuracy < 0.5:
        return None
    evidence = {
        "floor": significant(floor, 6),
        "val_loss": significant(val, 6),
        "val_accuracy": significant(accuracy, 4),
    }
    cause = (
        f"validation accuracy is {accuracy:.1%}, yet the loss rests at {val:.3g}, the lowest value that probabilities "
        f"in place of logits allow ({floor:.3g}): the model already ends in a softmax, which the loss applies again"
    )
    span = (int(history.epochs.step[0]), int(history.epochs.step[-1]))
    return Finding("double_softmax", "fault", cause, evidence, span, [], 0.85)


def class_collapse(history: History, params: Diagnose) -> Finding | None:
    """Macro F1 lies far below accuracy: some classes are hardly ever predicted."""
    f1, accuracy = history.epochs.val_macro_f1, history.epochs.val_accuracy
    if not f1.size or not accuracy.size or len(history.epochs) < params.min_epochs:
        return None
    low, high = end_level(f1), end_level(accuracy)
    if high <= 0 or low >= F1_SHARE * high:
        return None
    evidence = {"val_macro_f1": significant(low, 4), "val_accuracy": significant(high, 4)}
    cause = (
        f"macro F1 is {low:.1%} at an accuracy of {high:.1%}: whole classes are hardly ever predicted (they are rare, "
        "or the model gives one answer to nearly everything)"
    )
    span = (int(history.epochs.step[-min(3, len(f1))]), int(history.epochs.step[-1]))
    return Finding("class_collapse", "warning", cause, evidence, span, [], 0.7)
