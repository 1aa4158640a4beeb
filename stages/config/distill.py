"""Section `distill`: a smaller student learns from the teacher."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.config.base import Positive, Section, accompanies
from stages.config.fit import Fit
from stages.config.model import Model


class Distill(Section):
    """Knowledge distillation (Hinton et al. 2015)."""

    enabled: bool = True
    """false hands the teacher on untouched."""

    student: Model = Model(kwargs={"depth": 8, "width": 32})
    """The student's network."""

    temperature: Positive = 4.0
    """Softens both distributions; the soft loss is scaled by its square."""

    alpha: Annotated[float, Field(ge=0.0, le=1.0)] = 0.7
    """Weight of the soft loss; 1 - alpha is the weight of the labels. 0: the student learns alone."""

    max_drop: Annotated[float, Field(ge=0.0, le=1.0)] = accompanies(0.02)
    """Gate: how far the student's validation accuracy may lie below the teacher's (0.02 = 2 points)."""

    fit: Fit = Fit()
    """The student's training."""

    @model_validator(mode="after")
    def _settings_take_effect(self) -> Self:
        if self.alpha == 1.0 and self.fit.label_smoothing > 0.0:
            raise ValueError("fit.label_smoothing has no effect with alpha 1, which leaves the labels out; set it to 0")
        usual = type(self).model_fields["temperature"].default
        if self.alpha == 0.0 and self.temperature != usual:
            raise ValueError(
                f"temperature has no effect with alpha 0, which leaves the teacher out; set it to {usual:g}"
            )
        return self
