"""Section `prune`: structured pruning with fine-tuning."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.config.base import Count, Positive, Section, Share, accompanies
from stages.config.fit import Fit


class Prune(Section):
    """Structured pruning through Torch-Pruning's dependency graph: shapes get really smaller."""

    enabled: bool = True
    """false hands the model on untouched."""

    macs_ratio: Share = 0.5
    """Target: multiply-accumulates of the pruned model as a share of the unpruned one's, at most."""

    importance: Literal["l1", "l2"] = "l2"
    """Norm of a channel's weights that ranks the channels: L1, or the square of L2 (Li et al. 2017)."""

    scope: Literal["global", "layer"] = "global"
    """Rank channels over the whole network, or inside each layer."""

    round_to: Count = 16
    """Channel counts are multiples of this: counts off the vector width run slower."""

    iterations: Count = 2
    """Pruning steps, fine-tuned after each; the epochs of `fit` are divided among them."""

    alpha: Annotated[float, Field(ge=0.0, le=1.0)] = 0.7
    """Weight of the teacher's soft labels in the fine-tuning; 1 - alpha is the weight of the labels. 0: labels alone.
    Where `distill` is switched off there is no other teacher, and the labels alone count."""

    temperature: Positive = 4.0
    """Softens both distributions of the soft loss."""

    time_limit_s: Positive = accompanies(120.0)
    """Seconds that one search for what to prune may take: on some models Torch-Pruning runs on for minutes. When they
    are over the stage fails, whatever `on_miss` says."""

    max_drop: Annotated[float, Field(ge=0.0, le=1.0)] = accompanies(0.02)
    """Gate: how far the validation accuracy may fall below the unpruned model's."""

    on_miss: Literal["fail", "keep_best"] = accompanies("fail")
    """When the target is not reached within `max_drop`: fail (exit 3), or hand on the nearest good model."""

    fit: Fit = Fit(epochs=8, lr=0.001)
    """The fine-tuning: all rounds together."""

    @model_validator(mode="after")
    def _settings_take_effect(self) -> Self:
        if self.iterations > self.fit.epochs:
            raise ValueError(f"iterations must be at most fit.epochs ({self.fit.epochs}): each one is fine-tuned")
        if self.alpha == 1.0 and self.fit.label_smoothing > 0.0:
            raise ValueError("fit.label_smoothing has no effect with alpha 1, which leaves the labels out; set it to 0")
        usual = type(self).model_fields["temperature"].default
        if self.alpha == 0.0 and self.temperature != usual:
            raise ValueError(
                f"temperature has no effect with alpha 0, which leaves the teacher out; set it to {usual:g}"
            )
        return self
