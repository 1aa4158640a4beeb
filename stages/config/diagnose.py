"""Section `diagnose`: which verdicts on the loss curves stop the pipeline, and the rules' thresholds."""

from typing import Annotated, Literal

from pydantic import Field

from stages.config.base import Count, Positive, Section, Share

Verdict = Literal[
    "healthy",
    "too_short",
    "nan",
    "diverged",
    "exploding_gradients",
    "vanishing_gradients",
    "not_learning",
    "oscillating",
    "overfitting",
    "underfitting",
    "spike",
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
    """Verdicts that stop the pipeline (exit 3); the others pass with a warning."""

    clip_factor: Positive = 5.0
    """Exploding gradients: the norm lies above this factor of its bound ..."""

    clip_steps: Count = 30
    """... for so many steps in a row."""

    min_progress: Share = 0.1
    """Not learning: the train loss fell by less than this share of its start."""

    overfit_gap: Positive = 0.5
    """Overfitting: the validation loss ends this share above its own best while the train loss still falls."""

    min_accuracy: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Underfitting: train accuracy stays below this at a plateau; null: halfway between chance and 1."""
