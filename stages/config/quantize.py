"""Section `quantize`: INT8, accepted only when it is as good and faster."""

from typing import Annotated, Literal

from pydantic import Field

from stages.config.base import Count, Positive, Section


class Quantize(Section):
    """Static QDQ quantization: unsigned activations, signed per-channel weights."""

    enabled: bool = True
    """false hands the float model on."""

    max_drop: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """How far the accuracy may fall below the float model's, on validation and again on test."""

    min_speedup: Positive = 1.1
    """Least speed-up over float at batch 1 (median latency, alternating repeats)."""

    calibration: Literal["minmax", "entropy", "percentile"] = "minmax"
    """How activation ranges are found from the calibration split."""

    calibration_samples: Count = 256
    """Samples of the calibration split that are used, at most."""

    repeats: Count = 200
    """Timed runs per model."""

    fixed: Literal["int8", "float"] | None = None
    """Set: take this one, whatever the latency says (the accuracy bound still holds)."""
