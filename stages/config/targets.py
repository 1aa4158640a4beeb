"""Section `targets`: the bounds that the final model must keep."""

from typing import Annotated

from pydantic import Field

from stages.config.base import Positive, Section


class Targets(Section):
    """Gates of `profile_model` on the final model; null: no bound."""

    min_accuracy: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Least accuracy on the test split."""

    max_p95_latency_ms: Positive | None = None
    """Largest 95th percentile of the latency at batch 1, in ms."""

    max_size_kib: Positive | None = None
    """Largest file size in KiB."""
