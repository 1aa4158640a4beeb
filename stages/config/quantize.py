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
    """Least speed-up over float at batch 1 (median over alternating rounds).

    A decision, once made on a device, is kept until another choice is 10% better, three times measured, so that runs
    repeat each other.
    """

    calibration: Literal["minmax", "moving_average", "percentile", "entropy"] = "minmax"
    """How activation ranges are found from the calibration split."""

    calibration_samples: Count = 256
    """Samples of the calibration split that are used, at most; the classes in turn."""

    reduce_range: bool | None = None
    """true: weights use 7 of their 8 bits; null: by the processor (true without VNNI, AMX or Arm dot product)."""

    repeats: Count = 3000
    """Timed runs per model, at most: slow models are timed for a few seconds."""

    warmup: Count = 20
    """Runs before timing, per model and round."""

    fixed: Literal["int8", "float"] | None = None
    """Set: take this one, whatever the latency says (INT8 must still keep the accuracy)."""
