"""All rules, in the order in which one causes the other: the first that holds is named as the cause."""

from collections.abc import Callable

from stages.config.diagnose import Diagnose
from stages.diagnosis.finding import Finding
from stages.diagnosis.history import History
from stages.diagnosis.rules.generalisation import mismatch, overfitting
from stages.diagnosis.rules.gradients import exploding_gradients, vanishing_gradients
from stages.diagnosis.rules.nonfinite import nan
from stages.diagnosis.rules.order import unshuffled
from stages.diagnosis.rules.outputs import class_collapse, double_softmax
from stages.diagnosis.rules.progress import lr_too_low, not_learning, underfitting
from stages.diagnosis.rules.schedule import schedule
from stages.diagnosis.rules.stability import diverged, oscillating, spike, spike_recovered
from stages.diagnosis.rules.start import bad_start

Rule = Callable[[History, Diagnose], Finding | None]

AT_ONCE: tuple[Rule, ...] = (nan, diverged)
"""Faults that show even in a run that is too short to say anything else."""

RULES: tuple[Rule, ...] = (
    nan,
    bad_start,
    schedule,
    double_softmax,
    unshuffled,
    mismatch,
    exploding_gradients,
    oscillating,
    spike,
    diverged,
    vanishing_gradients,
    lr_too_low,
    not_learning,
    overfitting,
    underfitting,
    class_collapse,
    spike_recovered,
)
