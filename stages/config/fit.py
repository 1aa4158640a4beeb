"""How a network is fitted: shared by `train`, `distill.fit` and `prune.fit`."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from stages.config.augment import Augment
from stages.config.base import Count, NotNegative, Positive, Section, Share, accompanies
from stages.config.recovery import Recovery

Optimizer = Literal["auto", "sgd", "adam", "adamw", "lion", "adam_then_sgd"]
Schedule = Literal[
    "warmup_cosine", "cosine", "cosine_restarts", "warmup_linear", "one_cycle", "constant", "reduce_on_plateau"
]


def _regular(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return pattern


class Group(Section):
    """Weights with settings of their own, chosen by name."""

    pattern: Annotated[str, Field(min_length=1), AfterValidator(_regular)]
    """Regular expression, searched in the names of the weights (`^head\\.`); one that matches nothing is refused, and
    a weight belongs to the first group that matches."""

    lr_scale: Positive = 1.0
    """Times the learning rate."""

    weight_decay: NotNegative | None = None
    """Instead of the general one; null: as without a group."""


class Plateau(Section):
    """Schedule `reduce_on_plateau`: the learning rate falls when the validation loss no longer does."""

    factor: Share = 0.5
    """Times the learning rate at each plateau."""

    patience: Count = 3
    """Epochs without a better validation loss that make a plateau."""

    min_delta: NotNegative = 0.0
    """A loss counts as better when it is lower by more than this."""


class Ema(Section):
    """Exponential moving average of the weights, evaluated beside them; the better one is handed on."""

    decay: Share = 0.999
    """Weight of the past at each step; bias-corrected, so that the first steps do not hold the average back."""

    start_step: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps before the averaging begins."""


class EarlyStopping(Section):
    """Ends a training that no longer gets better; NaN is never better."""

    monitor: Literal["val_loss", "val_accuracy"] = "val_loss"
    """What is watched."""

    patience: Count = 5
    """Epochs without a better value after which it ends."""

    min_delta: NotNegative = 0.0
    """A value counts as better when it is better by more than this."""


class Fit(Section):
    """Settings of the one training loop."""

    epochs: Count = 15
    """Passes over the train split."""

    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """The effective batch: samples per optimizer step. The machine only decides how it is split
    (micro-batch x accumulation)."""

    optimizer: Optimizer = "adamw"
    """`adamw` (Loshchilov & Hutter 2019), `adam` (Kingma & Ba 2015; decay as L2), `lion` (Chen et al. 2023), `sgd` with
    Nesterov momentum, `adam_then_sgd` (Keskar & Socher 2017, with a fixed switch point), or `auto`: AdamW for networks
    with attention, SGD for those with convolutions alone, AdamW else."""

    lr: Positive = 0.003
    """Peak learning rate."""

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Momentum of `sgd` and of the second phase of `adam_then_sgd` (0.9 when left out)."""

    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """Decay rates of the moments of `adam`, `adamw`, `adam_then_sgd` (0.9, 0.999 when left out) and `lion` (0.9, 0.99).
    """

    switch_share: Share | None = None
    """`adam_then_sgd`: share of all steps after which SGD takes over (0.5 when left out)."""

    switch_lr_scale: Positive | None = None
    """`adam_then_sgd`: times the learning rate once SGD has taken over (10 when left out; SGD wants larger ones)."""

    weight_decay: NotNegative = 0.05
    """Decay on weights of two or more dimensions; biases and norms are spared."""

    groups: list[Group] = []
    """Weights with settings of their own, by name."""

    schedule: Schedule = "warmup_cosine"
    """Course of the learning rate over the optimizer steps."""

    warmup_share: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Share of all steps with a linear warm-up (`warmup_cosine`, `warmup_linear`: 0.1 when left out), or with the rise
    of `one_cycle` (0.3)."""

    cycles: Annotated[int, Field(ge=2)] | None = None
    """`cosine_restarts`: cosine cycles of equal length (3 when left out)."""

    plateau: Plateau | None = None
    """`reduce_on_plateau`: when and how far the learning rate falls."""

    clip_norm: Positive | None = 5.0
    """Bound on the total gradient norm; null switches clipping off."""

    clip: bool = True
    """false: the bound is only watched, and clipping is switched on when the norm stays above five times the bound."""

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the target spread evenly over all classes."""

    precision: Literal["none", "bf16", "fp16"] = "none"
    """`bf16` and `fp16`: mixed precision (fp16 with loss scaling); `none`: float32 throughout."""

    activation_checkpointing: bool = False
    """Blocks compute their activations again in the backward pass: less memory, the same result, about a third slower.
    """

    compile: bool = False
    """torch.compile for the training steps; where it fails, the plain network runs and a message says so."""

    ema: Ema | None = None
    """Moving average of the weights; null: none."""

    reestimate_batchnorm: bool = False
    """At the end, take BatchNorm's statistics anew over the whole train split (micro-batches make the running ones
    noisy)."""

    augment: Augment | None = None
    """Random changes to training images; null: none."""

    early_stopping: EarlyStopping | None = None
    """End before the last epoch; null: never."""

    recovery: Recovery = Recovery()
    """What happens when memory runs out, or the loss is lost."""

    save_every_epochs: Count = accompanies(1)
    """A checkpoint after so many epochs."""

    save_every_steps: Count | None = accompanies(None)
    """And inside an epoch after so many steps; null: at its end only."""

    log_every_steps: Count = accompanies(50)
    """Recorded values are gathered on the device and written after so many steps."""

    layers_every_steps: Count | None = 50
    """Gradient norm and update-to-weight ratio per layer after so many steps; null: never."""

    @model_validator(mode="after")
    def _settings_take_effect(self) -> Self:
        self._belong("optimizer", ("sgd", "adam_then_sgd"), "momentum")
        self._belong("optimizer", ("adam", "adamw", "lion", "adam_then_sgd"), "betas")
        self._belong("optimizer", ("adam_then_sgd",), "switch_share", "switch_lr_scale")
        self._belong("schedule", ("warmup_cosine", "warmup_linear", "one_cycle"), "warmup_share")
        self._belong("schedule", ("cosine_restarts",), "cycles")
        self._belong("schedule", ("reduce_on_plateau",), "plateau")
        if not self.clip and self.clip_norm is None:
            raise ValueError("clip: false needs a clip_norm to watch; set clip_norm, or clip: true")
        if self.clip_norm is None and "clip_after_steps" in self.recovery.model_fields_set:
            raise ValueError("recovery.clip_after_steps watches clip_norm, which is null; set it, or leave this out")
        self._fit_into_epochs()
        return self

    def _fit_into_epochs(self) -> None:
        """Raises when a rule that looks at several epochs could never act: what it does after the last one is none."""
        rule, amplitude = self.early_stopping, self.recovery.amplitude
        plateau = (self.plateau or Plateau()) if self.schedule == "reduce_on_plateau" else None
        if plateau is not None and plateau.patience >= self.epochs - 1:
            raise ValueError(
                f"plateau.patience must be below epochs - 1 ({self.epochs - 1}), or the learning rate never falls; "
                f"got {plateau.patience}"
            )
        if rule is not None and rule.patience >= self.epochs - 1:
            raise ValueError(
                f"early_stopping.patience must be below epochs - 1 ({self.epochs - 1}), or nothing is ever stopped; "
                f"got {rule.patience}"
            )
        if amplitude is not None and amplitude.epochs >= self.epochs:
            raise ValueError(
                f"recovery.amplitude.epochs must be below epochs ({self.epochs}), or it never acts; "
                f"got {amplitude.epochs}"
            )

    def _belong(self, chosen: str, owners: tuple[str, ...], *names: str) -> None:
        """Raises when a setting is given that another choice alone would read."""
        choice = getattr(self, chosen)
        for name in names:
            if choice not in owners and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} belongs to {chosen} {' or '.join(map(repr, owners))}, here it is {choice!r}; "
                    f"set {name} to null or choose one of them"
                )
