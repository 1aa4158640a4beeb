"""The first step, before any weight has changed."""

from stages.config.diagnose import Diagnose
from stages.diagnosis.finding import Finding, significant
from stages.diagnosis.history import History

TOO_HIGH = 3.0
"""Initial weights of the usual size start within a few tenths of ln C; this factor is far outside."""


def bad_start(history: History, _params: Diagnose) -> Finding | None:
    """The loss of the first step lies far above ln C: an untrained network that is sure of wrong answers.

    Only of a training from scratch on labels: a student's soft loss is scaled by the square of the temperature.
    Source: "verify loss at init" (Karpathy, A Recipe for Training Neural Networks, 2019).
    """
    chance = history.chance_loss
    if chance is None or history.stage != "train" or int(history.steps.step[0]) > 1:
        return None
    first = float(history.steps.loss[0])
    if first <= TOO_HIGH * chance:
        return None
    cause = (
        f"the untrained model's loss is {first:.3g}, while a guess has ln C = {chance:.3g}: the initial weights or the "
        "inputs are far too large (look at the initialisation and the normalisation)"
    )
    step = int(history.steps.step[0])
    evidence = {"first_loss": significant(first, 6), "ln_classes": significant(chance, 6)}
    return Finding("bad_start", "fault", cause, evidence, (step, step), [], 0.8)
