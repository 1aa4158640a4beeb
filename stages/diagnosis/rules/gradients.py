"""Exploding and vanishing gradients."""

import numpy as np

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level, longest_run, start_level
from stages.diagnosis.finding import Finding, scaled, significant, to
from stages.diagnosis.history import History
from stages.diagnosis.levels import near_chance

UNBOUNDED_NORM = 1000.0
"""DeepDiagnosis (Wardat et al., ICSE 2022): a norm above this is an explosion, where no clipping sets a bound."""
GROWTH = 10.0
"""A norm that is high all along, and no higher at the end, is a matter of scale; an explosion grows."""


def exploding_gradients(history: History, params: Diagnose) -> Finding | None:
    """The norm lies above `clip_factor` times its bound for `clip_steps` steps in a row, and the loss does not fall.

    Active clipping of a run that learns is healthy, however tight the bound: AdamW's step does not even depend on it.
    Source: the five-times / thirty-steps rule of practice; DeepDiagnosis for runs without clipping.
    """
    norm, loss = history.steps.grad_norm, history.steps.loss
    if not norm.size:
        return None
    limit = params.clip_factor * history.clip_norm if history.clip_norm else UNBOUNDED_NORM
    start, length = longest_run(norm > limit)
    if length < params.clip_steps:
        return None
    before = float(np.median(norm[: max(3, len(norm) // 50)]))
    inside = norm[start : start + length]
    grew = float(np.median(inside)) > GROWTH * before or before > UNBOUNDED_NORM
    learned = end_level(loss) < 0.5 * start_level(loss)
    if learned or not grew:
        return None
    first, last = int(history.steps.step[start]), int(history.steps.step[start + length - 1])
    evidence = {
        "limit": significant(limit, 6), "steps_in_a_row": length, "largest_norm": significant(float(inside.max()), 6),
        "median_norm": significant(float(np.median(inside)), 6), "norm_at_start": significant(before, 6),
    }  # fmt: skip
    cause = (
        f"the gradient norm stays above {limit:g} for {length} steps in a row (median {np.median(inside):.3g}) and the "
        "loss does not fall: steps are too big, the initial weights too large, or the inputs are not normalised"
    )
    clip = [] if history.clip_norm else to(history, "clip_norm", 1.0, "bounds a single step")
    prescription = [*scaled(history, "lr", 0.1, "smaller steps"), *clip]
    return Finding("exploding_gradients", "fault", cause, evidence, (first, last), prescription, 0.8)


def vanishing_gradients(history: History, params: Diagnose) -> Finding | None:
    """The norm is nearly zero over the second half while the loss is still high.

    A converged run has small gradients too, so the level of the loss decides.
    Source: AutoTrainer and DeepDiagnosis ("norms near zero"), with their false alarms on converged runs removed.
    """
    norm = history.steps.grad_norm
    if not norm.size or not near_chance(history):
        return None
    late = norm[len(norm) // 2 :]
    median = float(np.median(late))
    if median >= params.vanishing_norm:
        return None
    first, last = int(history.steps.step[len(norm) // 2]), int(history.steps.step[-1])
    evidence = {"median_norm": significant(median, 6), "limit": params.vanishing_norm}
    cause = (
        f"the gradient norm has a median of {median:.2g} in the second half while the model still guesses: almost no "
        "signal reaches the weights (saturated or dead units, zero initial weights, depth without skips or norms)"
    )
    return Finding("vanishing_gradients", "fault", cause, evidence, (first, last), [], 0.8)
