"""`augment`: random changes to training images."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.config.base import Positive, Section


class Augment(Section):
    """Random changes to training images; each depends on (seed, epoch, sample) alone."""

    flip: bool = False
    """Mirror half of the images left to right."""

    crop: Annotated[int, Field(ge=0)] = 0
    """Shift by up to so many pixels each way (padding by zeros, then a random crop of the former size)."""

    cutout: Annotated[int, Field(ge=0)] = 0
    """Side of a square set to zero at a random place (DeVries & Taylor 2017), in pixels; 0: none."""

    mixup: Positive | None = None
    """Alpha of mixup (Zhang et al. 2018): images and labels are mixed with those of another sample; null: none."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.flip or self.crop or self.cutout or self.mixup):
            raise ValueError("augment must switch something on (flip, crop, cutout, mixup); or set it to null")
        return self
