"""Batches in the same order in every epoch."""

import numpy as np

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import smooth
from stages.diagnosis.finding import Finding, significant
from stages.diagnosis.history import History

EXPLAINED = 0.5
MIN_EPOCHS = 6
MIN_BATCHES = 5
MIN_SPREAD = 0.1
"""Differences between batches below this (in log loss) are not worth a word."""


def unshuffled(history: History, _params: Diagnose) -> Finding | None:
    """A batch's place in its epoch explains more than half of how its loss differs: the order repeats.

    Of shuffled batches the place explains 1 / epochs by chance. Source: analysis of variance, one factor.
    """
    epoch, loss = history.steps.epoch, history.steps.loss
    if not epoch.size or loss.min() < 0:
        return None
    _, sizes = np.unique(epoch, return_counts=True)
    batches = int(np.median(sizes))
    whole = np.flatnonzero(sizes == batches)
    if batches < MIN_BATCHES or len(whole) < MIN_EPOCHS:
        return None
    curve = np.log(loss + 0.02 * max(float(np.median(loss[:3])), 1e-12))
    flat = curve - smooth(curve, 2 * batches + 1)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    late = whole[-max(MIN_EPOCHS, len(whole) // 2) :]
    table = np.stack([flat[starts[at] : starts[at] + batches] for at in late])
    table = table - table.mean(axis=1, keepdims=True)
    total = float(table.var())
    explained = float(table.mean(axis=0).var()) / total if total > 0 else 0.0
    if explained < EXPLAINED or np.sqrt(total) < MIN_SPREAD:
        return None
    evidence = {
        "explained": significant(explained, 3),
        "by_chance": significant(1.0 / len(late), 3),
        "epochs": len(late),
    }
    cause = (
        f"a batch's place in its epoch explains {explained:.0%} of how its loss differs, {1 / len(late):.0%} would be "
        "chance: the batches come in the same order in every epoch (sorted by class?)"
    )
    first = int(history.steps.step[starts[late[0]]])
    return Finding("unshuffled", "fault", cause, evidence, (first, int(history.steps.step[-1])), [], 0.8)
