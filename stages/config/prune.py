"""Section `prune`: structured pruning with fine-tuning."""

from typing import Annotated, Literal

from pydantic import Field

from stages.config.base import Count, Section, Share
from stages.config.fit import Fit


class Prune(Section):
    """Structured pruning through Torch-Pruning's dependency graph: shapes get really smaller."""

    enabled: bool = True
    """false hands the model on untouched."""

    macs_ratio: Share = 0.5
    """Target: multiply-accumulates of the pruned model as a share of the unpruned one's, at most."""

    importance: Literal["l1", "l2"] = "l2"
    """Norm of a channel's weights that ranks the channels (Li et al. 2017)."""

    scope: Literal["global", "layer"] = "global"
    """Rank channels over the whole network, or inside each layer."""

    round_to: Count = 16
    """Channel counts are multiples of this: counts off the vector width run slower."""

    iterations: Count = 2
    """Pruning steps, fine-tuned after each; the epochs of `fit` are divided among them."""

    max_drop: Annotated[float, Field(ge=0.0, le=1.0)] = 0.02
    """Gate: how far the validation accuracy may fall below the unpruned model's."""

    on_miss: Literal["fail", "keep_best"] = "fail"
    """When the target is not reached within `max_drop`: fail (exit 3), or hand on the nearest good model."""

    fit: Fit = Fit(epochs=8, lr=0.001)
    """The fine-tuning."""
