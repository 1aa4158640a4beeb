"""Where a run ends: near chance, low, or good. Task-aware; None or False where the record cannot tell."""

import numpy as np

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level
from stages.diagnosis.history import History

CHANCE_MARGIN = 0.15
"""Share of the way from chance to 1 that still counts as guessing: small validation sets scatter."""
CHANCE_LOSS_SHARE = 0.85
"""A loss above this share of ln C is still that of a guess."""


def final_accuracy(history: History) -> float | None:
    """The higher of train and validation accuracy at the end: dropout and label noise lower one of them."""
    columns = [c for c in (history.epochs.train_accuracy, history.epochs.val_accuracy) if c.size]
    finite = [end_level(c[np.isfinite(c)]) for c in columns if np.isfinite(c).any()]
    return max(finite) if finite else None


def near_chance(history: History) -> bool:
    """True when the run ends no better than guessing: by accuracy and by loss for classes, by loss alone otherwise."""
    chance_loss, chance = history.chance_loss, history.chance_accuracy
    loss = history.steps.loss
    if chance_loss is None or chance is None:
        return bool(loss.size) and end_level(loss) > 0.9 * float(np.median(loss[:3]))
    accuracy = final_accuracy(history)
    if accuracy is not None:
        return accuracy <= chance + CHANCE_MARGIN * (1.0 - chance)
    return bool(loss.size) and end_level(loss) > CHANCE_LOSS_SHARE * chance_loss


def low_accuracy(history: History, params: Diagnose) -> float | None:
    """The bound on accuracy when the run ends below it; None otherwise."""
    chance, accuracy = history.chance_accuracy, final_accuracy(history)
    if chance is None or accuracy is None:
        return None
    bound = params.min_accuracy if params.min_accuracy is not None else (1.0 + chance) / 2.0
    return bound if accuracy < bound else None
