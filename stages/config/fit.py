"""How a network is fitted: shared by `train`, `distill.fit` and `prune.fit`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.config.base import Count, Positive, Section, accompanies


class Fit(Section):
    """Settings of the one training loop."""

    epochs: Count = 15
    """Passes over the train split."""

    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """The effective batch: samples per optimizer step. The machine only decides how it is split
    (micro-batch x accumulation)."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    """`adamw` (Loshchilov & Hutter 2019) or `sgd` with Nesterov momentum."""

    lr: Positive = 0.003
    """Peak learning rate."""

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Momentum of `sgd` (0.9 when left out); `adamw` takes none."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.05
    """Decay on weights of two or more dimensions; biases and norms are spared."""

    warmup_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of all optimizer steps with a linear warm-up; a cosine to zero follows."""

    clip_norm: Positive | None = 5.0
    """Bound on the total gradient norm; null switches clipping off."""

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the target spread evenly over all classes."""

    save_every_epochs: Count = accompanies(1)
    """A checkpoint after so many epochs."""

    log_every_steps: Count = accompanies(50)
    """Recorded values are gathered on the device and written after so many steps."""

    @model_validator(mode="after")
    def _settings_take_effect(self) -> Self:
        if self.optimizer == "adamw" and self.momentum is not None:
            raise ValueError("momentum belongs to optimizer 'sgd'; remove it or choose sgd")
        return self
