"""Section `diagnose`: which verdicts on the loss curves stop the pipeline, and the rules' thresholds."""

from typing import Annotated, Literal

from pydantic import Field

from stages.config.base import Count, Positive, Section, Share

Verdict = Literal[
    "healthy",
    "skipped",
    "too_short",
    "nan",
    "bad_start",
    "diverged",
    "exploding_gradients",
    "vanishing_gradients",
    "not_learning",
    "lr_too_low",
    "oscillating",
    "overfitting",
    "underfitting",
    "spike",
    "spike_recovered",
    "schedule",
    "mismatch",
    "double_softmax",
    "class_collapse",
    "unshuffled",
]


class Diagnose(Section):
    """The gate over the recorded training history."""

    fail_on: list[Verdict] = [
        "nan",
        "diverged",
        "exploding_gradients",
        "vanishing_gradients",
        "not_learning",
        "overfitting",
        "underfitting",
    ]
    """Findings that stop the pipeline (exit 3); the others pass with a warning, as does a finding that is only a
    warning itself (overfitting whose accuracy holds). A training that stopped itself always fails."""

    clip_factor: Positive = 5.0
    """Exploding gradients: the norm lies above this factor of its bound ..."""

    clip_steps: Count = 30
    """... for so many steps in a row."""

    min_progress: Share = 0.1
    """Not learning: the train loss fell by less than this share of its start, and accuracy is near chance."""

    overfit_gap: Positive = 0.5
    """Overfitting: the validation loss ends this share above its own best while the train loss still falls."""

    min_accuracy: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Underfitting: accuracy stays below this at a plateau; null: halfway between chance and 1."""

    oscillation: Positive = 0.2
    """Oscillating: validation swings by more than this share of the run's own range around its trend."""

    spike_z: Positive = 8.0
    """Spike: the step's loss lies so many robust standard deviations above the steps before it."""

    vanishing_norm: Positive = 1e-3
    """Vanishing gradients: the gradient norm lies below this while the loss is still high."""

    min_epochs: Count = 3
    """Too short: with fewer epochs, only faults that show at once are looked for."""
