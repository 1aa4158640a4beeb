"""`recovery`: what the training loop does when something goes wrong."""

from typing import Annotated, Literal

from pydantic import Field

from stages.config.base import Count, Positive, Section


class Amplitude(Section):
    """A validation loss that swings."""

    epochs: Annotated[int, Field(ge=4)] = 5
    """Last epochs that are looked at."""

    share: Positive = 0.5
    """Their largest loss less their smallest, over their mean, above which it counts as swinging; it must have turned
    at least twice."""

    action: Literal["reduce_lr", "stop"] = "reduce_lr"
    """`reduce_lr`: the learning rate is halved, and stays so; `stop`: the training ends, with status `stopped`."""


class Recovery(Section):
    """How a training goes on when memory runs out or the loss is lost. Each recovery is an event in the history."""

    halve_micro_batch: bool = True
    """Out of memory: the window is taken again with half the micro-batch; the effective batch stays."""

    max_rollbacks: Annotated[int, Field(ge=0)] = 2
    """NaN or Inf: back to the last good checkpoint with half the learning rate, so many times at most; 0: never."""

    clip_after_steps: Count = 30
    """Steps in a row with a gradient norm above five times `clip_norm` that switch clipping on (or, where it is on, are
    an event)."""

    amplitude: Amplitude | None = None
    """What a swinging validation loss leads to; null: nothing."""
