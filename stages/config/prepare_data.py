"""Section `prepare_data`: how the data is split."""

from typing import Self

from pydantic import model_validator

from stages.config.base import Count, Section, Share


class PrepareData(Section):
    """Splits by fixed thresholds on hash(seed, content): new data never moves an old sample."""

    val_share: Share = 0.15
    """Share of the samples for validation; selects models."""

    test_share: Share = 0.15
    """Share for the test split; only confirms. A source's official test set is used instead where there is one."""

    calibration_share: Share = 0.2
    """Share of the train split that also serves as calibration data for the quantization."""

    min_per_class: Count = 1
    """Samples that each class must have in each of train, val and test."""

    @model_validator(mode="after")
    def _train_is_left(self) -> Self:
        if self.val_share + self.test_share >= 1.0:
            raise ValueError("val_share + test_share must leave something for train (below 1)")
        return self
