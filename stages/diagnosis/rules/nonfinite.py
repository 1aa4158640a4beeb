"""NaN and infinity."""

import numpy as np
from pydantic import JsonValue

from stages.config.diagnose import Diagnose
from stages.diagnosis.finding import Change, Finding, scaled, to
from stages.diagnosis.history import Floats, History


def first_nonfinite(history: History) -> tuple[int, str] | None:
    """The optimizer step and the column of the first value that is not finite; None where all are."""
    columns: list[tuple[str, Floats, Floats]] = [
        ("loss", history.steps.loss, history.steps.step.astype(float)),
        ("grad_norm", history.steps.grad_norm, history.steps.step.astype(float)),
        ("train_loss", history.epochs.train_loss, history.epochs.step.astype(float)),
        ("val_loss", history.epochs.val_loss, history.epochs.step.astype(float)),
    ]
    found = [
        (int(at[bad[0]]), name)
        for name, values, at in columns
        if values.size and (bad := np.flatnonzero(~np.isfinite(values))).size
    ]
    return min(found, key=lambda pair: pair[0]) if found else None


def nan(history: History, _: Diagnose) -> Finding | None:
    """A loss or gradient norm is NaN or infinite, or the training stopped itself for it.

    NaN compares false with everything, so it is looked for before any other rule reads the numbers.
    Source: AutoTrainer (Zhang et al., ICSE 2021), TensorFlow Debugger's and SageMaker Debugger's rules.
    """
    first = first_nonfinite(history)
    if first is None and history.status != "stopped":
        return None
    if first is None:
        last = int(history.steps.step[-1]) if len(history.steps) else 0
        reason = history.reason or "no reason recorded"
        return Finding("nan", "fatal", f"the training stopped itself: {reason}", {"reason": reason}, (last, last),
                       _calmer(history), 0.7)  # fmt: skip
    step, column = first
    before = history.steps.step < step
    loss = history.steps.loss[before]
    finite = loss[np.isfinite(loss)]
    evidence: dict[str, JsonValue] = {"first_step": step, "column": column, "steps_before": int(before.sum())}
    if not finite.size:
        return Finding("nan", "fatal", f"{column} is not finite at the very first step, before any weight changed: the "
                       "inputs or the first weights hold NaN or infinity, or are far too large",
                       evidence, (step, step), [], 0.9)  # fmt: skip
    evidence |= {"loss_before": float(f"{finite[-1]:.6g}"), "loss_lowest": float(f"{finite.min():.6g}")}
    grew = finite[-1] > 2.0 * finite.min() or finite[-1] > 2.0 * finite[0]
    if grew:
        cause = (
            f"{column} is no longer finite from step {step} on, after the loss had grown: the learning rate is too high"
        )
    else:
        cause = (
            f"{column} is not finite from step {step} on, without the loss having grown before: one bad sample, "
            "an overflow, or an unstable operation (log of 0, division by 0)"
        )
    return Finding("nan", "fatal", cause, evidence, (step, step), _calmer(history), 0.85 if grew else 0.6)


def _calmer(history: History) -> list[Change]:
    clip = [] if history.clip_norm else to(history, "clip_norm", 1.0, "bounds a single step")
    return [*scaled(history, "lr", 0.2, "smaller steps stay finite"), *clip]
