"""What the loop is given, and what it leaves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import JsonValue
from torch import Tensor, nn

from stages.checkpoints.lineage import is_mixed
from stages.checkpoints.store import Store
from stages.config.fit import Fit
from stages.data.loaders import LoaderSettings
from stages.data.prepared import Prepared
from stages.training.device import best_device
from stages.training.evaluate import Evaluation
from stages.training.ranks import Ranks

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`loss(logits, labels, raw)`: mean over the micro-batch, a scalar on the logits' device. `raw` is what the loader
gave, (n, *shape), on that device: a teacher reads it."""


@dataclass
class Job:
    """A training: of a teacher, a student, or a pruned network. `module` is trained in place."""

    name: str
    """The stage, for messages."""

    module: nn.Module
    preprocess: nn.Module
    prepared: Prepared
    settings: Fit
    micro_batch: int
    """Samples per forward pass; must divide `settings.batch_size`."""

    seed: int
    store: Store
    history: Path
    """Folder for the finished history."""

    loss: Loss | None = None
    """None: cross entropy with `settings.label_smoothing`."""

    loader: LoaderSettings = field(default_factory=LoaderSettings)
    stop_on_nan: bool = True
    """End with status `stopped` when a loss or gradient norm is NaN or infinite."""

    device: torch.device = field(default_factory=best_device)
    ranks: Ranks = field(default_factory=Ranks.current)
    """The processes that train together; each has a store and a history folder of its own."""


@dataclass(frozen=True)
class Fitted:
    """How a training ended. The job's module holds the best weights by validation accuracy."""

    status: str
    """`finished` or `stopped` (it stopped itself)."""

    reason: str
    best_epoch: int
    """Counted from 1; 0 when no epoch ended well: the module then holds its starting weights."""

    val: Evaluation
    """Of the best weights."""

    lineage: list[Any]
    """Segments of `stages.checkpoints.lineage`."""

    weights: str = "raw"
    """Which were better: `raw`, or `ema` for their moving average."""

    micro_batch: int = 0
    """Samples per forward pass at the end: smaller than at the start where memory ran out."""

    reused: bool = False
    """A finished run's result was taken; nothing was trained."""

    @property
    def run(self) -> dict[str, JsonValue]:
        """For `Result.run`: who made which steps, and whether different code did."""
        return {
            "lineage": self.lineage,
            "mixed": is_mixed(self.lineage),
            "reused": self.reused,
            "weights": self.weights,
        }


def cross_entropy(label_smoothing: float) -> Loss:
    """The default loss."""

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=label_smoothing)

    return loss
