"""Loss, accuracy, macro F1 and confusion matrix of a network on one split."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.data.loaders import LoaderSettings, batches
from stages.data.prepared import Prepared
from stages.runtime import stopping

BATCH_SIZE = 256


@dataclass(frozen=True)
class Evaluation:
    """How good a network is on a split."""

    loss: float
    """Mean cross entropy, without label smoothing."""

    accuracy: float
    """Share of right answers."""

    macro_f1: float
    """Mean F1 over the classes that occur among labels or answers."""

    confusion: tuple[tuple[int, ...], ...]
    """Counts, [actual][predicted]."""


def evaluate(
    module: nn.Module,
    preprocess: nn.Module,
    prepared: Prepared,
    split: str,
    *,
    batch_size: int = BATCH_SIZE,
    loader: LoaderSettings | None = None,
    around: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    stoppable: bool = True,
) -> Evaluation:
    """Runs the split through the network in evaluation mode, on the device where it lies; the mode is put back.

    `around(samples)` is entered around each forward pass, of the network alone.

    Inside `stopping.polled()` a requested stop raises `StopRequested` between two batches, if it is `stoppable`.
    """
    classes = len(prepared.info.classes)
    anchor = next(module.parameters(), torch.zeros(()))
    losses: list[Tensor] = []
    confusion = torch.zeros(classes * classes, dtype=torch.int64, device=anchor.device)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            for raw, labels in batches(prepared, prepared.indices(split), batch_size, loader or LoaderSettings()):
                labels = labels.to(anchor.device)
                with around(len(labels)):
                    logits = module(preprocess(raw.to(anchor.device)))
                losses.append(F.cross_entropy(logits, labels, reduction="sum"))
                cells = labels * classes + logits.argmax(dim=1)
                confusion += torch.bincount(cells, minlength=classes * classes)
                if stoppable and stopping.requested():
                    raise stopping.StopRequested
    finally:
        module.train(was_training)
    return summarise(torch.stack(losses).double().sum().item(), confusion.view(classes, classes).tolist())


def summarise(loss_sum: float, confusion: Sequence[Sequence[int]]) -> Evaluation:
    """The figures from the summed loss and the confusion counts [actual][predicted]."""
    samples = sum(map(sum, confusion))
    right = sum(row[number] for number, row in enumerate(confusion))
    return Evaluation(loss_sum / samples, right / samples, macro_f1(confusion), tuple(map(tuple, confusion)))


def macro_f1(confusion: Sequence[Sequence[int]]) -> float:
    """Unweighted mean of 2 tp / (2 tp + fp + fn) over the classes that occur among labels or answers."""
    scores = []
    for number, row in enumerate(confusion):
        actual, predicted = sum(row), sum(other[number] for other in confusion)
        if actual or predicted:
            scores.append(2 * row[number] / (actual + predicted))
    return sum(scores) / len(scores)
