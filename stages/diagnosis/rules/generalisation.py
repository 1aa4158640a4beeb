"""Train against validation: overfitting, and the two not processed alike."""

import numpy as np
from pydantic import JsonValue

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level, longest_run, trailing_mean
from stages.diagnosis.finding import Change, Finding, scaled, significant
from stages.diagnosis.history import Floats, History
from stages.diagnosis.levels import CHANCE_MARGIN

MIN_RISE_SHARE = 0.05
"""The validation loss must rise by this share of ln C: a rise from 0.01 to 0.02 means nothing."""
MIN_DROP = 0.03
"""Accuracy falls noticeably from here on ..."""
MIN_DROP_SAMPLES = 2.5
"""... and by so many samples of the validation set at least."""
EPOCHS_AVERAGED = 4
"""Validation is averaged over so many epochs: small or alternating validation sets jump from one to the next."""
RANDOM_GAP = 0.3
WIDE_GAP = 0.12
MEMORISED = 0.98
"""Train accuracy above which nothing is left to learn from the train split."""
MISMATCH_RATIO = 2.0
"""From the first epochs on, the validation loss is this many times the train loss ..."""
APART_SHARE = 0.1
"""... and this share of ln C above it."""
STILL_LOST_SHARE = 0.7
"""Validation at a loss above this share of ln C has learned next to nothing."""
OVERCONFIDENT_LOSS = 6.0
"""Loss per wrong answer: a well calibrated classifier has 2 to 4."""
FIRST_EPOCHS = 3


def overfitting(history: History, params: Diagnose) -> Finding | None:
    """The validation loss ends `overfit_gap` above its best while the train loss still falls, and accuracy falls.

    Overconfidence alone raises the validation loss of healthy runs, so a run whose accuracy stays at its best never
    fails: it gets a warning when train accuracy lies far above. Train accuracy far above a validation accuracy at
    chance means labels that the inputs do not explain.
    Source: Goodfellow et al. 2016, chapter 7.8 (early stopping); Guo et al. 2017 on loss rising at constant accuracy;
    Zhang et al. 2017 on random labels.
    """
    val_loss, train_loss = history.epochs.val_loss, history.epochs.train_loss
    val, train = history.epochs.val_accuracy, history.epochs.train_accuracy
    if len(history.epochs) < params.min_epochs or not val.size or not train.size:
        return None
    averaged_val, averaged_loss = trailing_mean(val, EPOCHS_AVERAGED), trailing_mean(val_loss, EPOCHS_AVERAGED)
    gap = end_level(train) - float(averaged_val[-1])
    chance = history.chance_accuracy or 0.0
    if gap > RANDOM_GAP and end_level(val) <= chance + CHANCE_MARGIN * (1.0 - chance):
        return _random_labels(history, gap)
    at = int(np.argmin(averaged_loss))
    lowest, best = float(averaged_loss[at]), at + len(val_loss) - len(averaged_loss)
    rise = float(averaged_loss[-1]) - lowest
    floor = MIN_RISE_SHARE * (history.chance_loss or 1.0)
    rises = rise > max(params.overfit_gap * lowest, floor)
    drop = float(averaged_val.max() - averaged_val[-1])
    falls = drop > max(MIN_DROP, MIN_DROP_SAMPLES * _granularity(val))
    memorised = gap > WIDE_GAP and (rises or end_level(train) > MEMORISED)
    if end_level(train_loss) >= float(train_loss[best]) and not memorised:
        return None
    return _overfit(history, best, rise, drop, gap, falls=falls and rises) if (falls and rises) or memorised else None


def _overfit(history: History, best: int, rise: float, drop: float, gap: float, *, falls: bool) -> Finding:
    epochs = history.epochs
    evidence = {
        "best_epoch": int(epochs.epoch[best]), "best_val_loss": significant(float(epochs.val_loss[best]), 6),
        "val_loss_at_end": significant(end_level(epochs.val_loss), 6), "accuracy_drop": significant(drop, 3),
        "train_accuracy_above_val": significant(gap, 3),
    }  # fmt: skip
    tail = f"accuracy fell by {100 * drop:.1f} points" if falls else "accuracy holds, so this is a warning only"
    cause = (
        f"from epoch {epochs.epoch[best]} on the validation loss rose by {max(rise, 0.0):.3g} while the train loss "
        f"fell, and train accuracy lies {100 * gap:.0f} points above validation: the model memorises; {tail}"
    )
    span = (int(epochs.step[best]), int(epochs.step[-1]))
    return Finding(
        "overfitting", "fault" if falls else "warning", cause, evidence, span, _regularise(history, best), 0.8
    )


def _random_labels(history: History, gap: float) -> Finding:
    epochs = history.epochs
    evidence = {
        "val_accuracy": significant(end_level(epochs.val_accuracy), 4),
        "chance": significant(history.chance_accuracy or 0.0, 4),
        "train_accuracy_above_val": significant(gap, 3),
    }
    cause = (
        f"train accuracy lies {100 * gap:.0f} points above a validation accuracy at chance: the model memorises labels "
        "that the inputs do not explain; look at the labels, and whether validation is read as train is"
    )
    return Finding("overfitting", "fault", cause, evidence, (int(epochs.step[0]), int(epochs.step[-1])), [], 0.8)


def _regularise(history: History, best: int) -> list[Change]:
    decay = history.settings.get(f"{history.fit_key}.weight_decay")
    more = (
        scaled(history, "weight_decay", 3.0, "more regularisation") if isinstance(decay, float) and decay < 0.3 else []
    )
    key = f"{history.fit_key}.epochs"
    planned = history.settings.get(key, history.planned_epochs)
    shorter = max(1, best + 1)
    fewer = [Change(key, planned, shorter, "ends where validation was best")] if planned != shorter else []
    return [*fewer, *more]


def _granularity(accuracy: Floats) -> float:
    """The accuracy of one sample, from the smallest difference between two epochs; 0 where all are equal."""
    values = np.unique(accuracy)
    return float(np.diff(values).min()) if values.size > 1 else 0.0


def mismatch(history: History, params: Diagnose) -> Finding | None:
    """Validation is much worse than train from the first epochs on, before any overfitting can have set in.

    Either it stays near chance, or it is wrong with a confidence that a network which has only begun to learn cannot
    have: loss per wrong answer is high while accuracy is good (inputs of another scale do that, and hardly show in
    accuracy). The train loss is an average over its epoch and so lies above that of the epoch's end: a validation loss
    far above it at once means that the two are not processed alike.
    """
    train, val, accuracy = history.epochs.train_loss, history.epochs.val_loss, history.epochs.val_accuracy
    chance = history.chance_loss
    if len(history.epochs) <= max(params.min_epochs, FIRST_EPOCHS) or chance is None or not accuracy.size:
        return None
    learned = np.flatnonzero(train < 0.7 * chance)
    if not learned.size or learned[0] > FIRST_EPOCHS or train.min() < 0:
        return None
    apart = (val > MISMATCH_RATIO * train) & (val - train > APART_SHARE * chance)
    lost = apart & (val > STILL_LOST_SHARE * chance)
    overconfident = apart & (val > OVERCONFIDENT_LOSS * (1.0 - accuracy)) & (accuracy > 0.5)
    first = int(learned[0])
    early = slice(first, first + FIRST_EPOCHS + 3)
    start, length = max((longest_run(lost[early]), longest_run(overconfident[early])), key=lambda found: found[1])
    if length < FIRST_EPOCHS or (val[first:].min() < APART_SHARE * chance):
        return None
    return _report_mismatch(history, slice(first + start, first + start + length))


def _report_mismatch(history: History, at: slice) -> Finding:
    epochs = history.epochs
    evidence: dict[str, JsonValue] = {
        "epochs": [int(e) for e in epochs.epoch[at]],
        "train_loss": [significant(float(v), 4) for v in epochs.train_loss[at]],
        "val_loss": [significant(float(v), 4) for v in epochs.val_loss[at]],
        "val_accuracy": [significant(float(v), 4) for v in epochs.val_accuracy[at]],
    }
    ratio = float(np.min(epochs.val_loss[at] / np.maximum(epochs.train_loss[at], 1e-12)))
    cause = (
        f"as early as epoch {epochs.epoch[at][0]} the validation loss is at least {ratio:.1f} times the train loss: "
        "validation is not processed as training is (normalisation, labels, or BatchNorm with tiny batches)"
    )
    span = (int(history.steps.step[0]), int(epochs.step[at][-1]))
    return Finding("mismatch", "fault", cause, evidence, span, [], 0.7)
