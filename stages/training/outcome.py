"""How a training ends: which weights are the best, what the record says, and taking over a finished run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stages.checkpoints import lineage
from stages.checkpoints.files import Saved
from stages.data.loaders import batches, epoch_order
from stages.runtime.progress import say
from stages.training import batchnorm
from stages.training.evaluate import Evaluation, evaluate, macro_f1
from stages.training.history import AlteredHistory, Row, Sums, copy_published, number, require_intact
from stages.training.job import Fitted, Job
from stages.training.machinery import Machinery
from stages.training.recovery import Condition


@dataclass(frozen=True)
class Scored:
    """The validation of an epoch: of the weights, and of their moving average where there is one."""

    raw: Evaluation
    average: Evaluation | None = None

    @property
    def better(self) -> Evaluation:
        """The better of the two."""
        return self.average if self.average is not None and is_better(self.average, self.raw) else self.raw


@dataclass
class Best:
    """The best epoch so far by validation."""

    epoch: int = 0
    """Counted from 1; 0: the starting weights."""

    step: int = 0
    """Of the checkpoint that holds the weights."""

    val: Evaluation | None = None
    weights: str = "raw"
    """`raw`, or `ema` for the moving average."""

    def takes(self, scored: Scored, epoch: int, step: int) -> bool:
        """Whether this epoch is better; then it is the best."""
        if not is_better(scored.better, self.val):
            return False
        self.epoch, self.step, self.val = epoch, step, scored.better
        self.weights = "ema" if scored.better is scored.average else "raw"
        return True

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Best":
        """The inverse of `dataclasses.asdict`."""
        val = values["val"]
        evaluation = None if val is None else Evaluation(**{**val, "confusion": tuple(map(tuple, val["confusion"]))})
        return cls(**{**values, "val": evaluation})


SHOWN_CLASSES = 100
"""With more classes an epoch's row leaves the confusion matrices out."""


def epoch_row(epoch: int, step: int, sums: Sums, scored: Scored) -> Row:
    """A row of epochs.jsonl: `sums` over the epoch's steps, `val_*` of the weights, `ema_*` of their average."""
    val, confusion = scored.raw, sums.confusion.tolist()
    samples = int(sums.confusion.sum())
    row: Row = {
        "epoch": epoch,
        "step": step,
        "train_loss": number(sums.loss / samples),
        "train_accuracy": number(int(sums.confusion.trace()) / samples),
        "val_loss": number(val.loss),
        "val_accuracy": number(val.accuracy),
        "val_macro_f1": number(val.macro_f1),
        "train_macro_f1": number(macro_f1(confusion)),
    }
    average = scored.average
    if average is not None:
        figures = {"loss": average.loss, "accuracy": average.accuracy, "macro_f1": average.macro_f1}
        row |= {f"ema_val_{name}": number(value) for name, value in figures.items()}
    if len(confusion) <= SHOWN_CLASSES:
        row |= {"train_confusion": confusion, "val_confusion": [list(counts) for counts in val.confusion]}
        row |= {} if average is None else {"ema_val_confusion": [list(counts) for counts in average.confusion]}
    return row


def is_better(new: Evaluation, best: Evaluation | None) -> bool:
    """Higher accuracy, or the same with a lower loss. NaN is never better."""
    if not math.isfinite(new.loss):
        return False
    if best is None or not math.isfinite(best.loss):
        return True
    return (new.accuracy, -new.loss) > (best.accuracy, -best.loss)


def take(job: Job, best: Best) -> None:
    """Puts the best weights into the module."""
    payload = job.store.load(best.step).payload
    job.module.load_state_dict(payload["average"]["module"] if best.weights == "ema" else payload["module"])


def reuse(job: Job) -> Fitted | None:
    """The result of a run that ended before, or None. With `store.reuse_finished` off, such a run is removed."""
    store = job.store
    if job.ranks.any(not store.finished)[0]:
        return None
    saved = store.latest()
    if job.ranks.any(saved is None or not store.reuse_finished or not _published(job, saved))[0] or saved is None:
        store.clear()
        return None
    about = saved.meta
    copy_published(store.history, job.history)
    say(f"{job.name}: this very training ended before ({about['status']}); its result is taken")
    condition = Condition.from_dict(saved.payload["progress"]["condition"])
    best = Best.from_dict(about["best"])
    return fitted(job, about["status"], about["reason"], best, about["lineage"], condition, reused=True)


def _published(job: Job, saved: Saved) -> bool:
    """Whether the history of a run that ended is as it was written."""
    try:
        require_intact(job.store.history, saved.payload["progress"]["position"], ended=True)
    except AlteredHistory as error:
        say(f"warning: {job.name}: ended before, but is trained again: {error.what}")
        return False
    return True


def fitted(
    job: Job,
    status: str,
    reason: str,
    best: Best,
    segments: list[lineage.Segment],
    condition: Condition,
    *,
    reused: bool,
) -> Fitted:
    """Leaves the best weights in the module, in evaluation mode, and says how good they are."""
    take(job, best)
    job.module.eval()
    val = best.val
    reestimated = job.settings.reestimate_batchnorm and bool(batchnorm.layers(job.module))
    if reestimated:
        batchnorm.reestimate(job.module, _train_inputs(job))
    if val is None or reestimated:  # Weights that nobody has looked at yet.
        size = condition.micro_batch
        val = evaluate(job.module, job.preprocess, job.prepared, "val", batch_size=size, loader=job.loader)
    return Fitted(status, reason, best.epoch, val, segments, best.weights, condition.micro_batch, reused)


def _train_inputs(job: Job) -> Iterator[Tensor]:
    # Shuffled: in files' order a batch may hold one class alone, whose spread says nothing of that of all.
    order = epoch_order(job.prepared.indices("train"), job.seed, 0)
    for raw, _ in batches(job.prepared, order, job.settings.batch_size, job.loader):
        yield job.preprocess(raw.to(job.device))


def history_meta(job: Job, parts: Machinery, best: Best, condition: Condition, status: str, reason: str) -> Row:
    """What meta.json of the history says of the training as a whole."""
    settings = job.settings
    return {
        "task": "classification",
        "classes": len(job.prepared.info.classes),
        "epochs": settings.epochs,
        "steps_per_epoch": len(parts.sizes),
        "train_samples": len(job.prepared.indices("train")),
        "optimizer": parts.choice.name,
        "optimizer_reason": parts.choice.reason,
        "lr": settings.lr,
        "lr_factor": condition.lr_factor,
        "clip_norm": settings.clip_norm if condition.clipping else None,
        "precision": settings.precision,
        "micro_batch": condition.micro_batch,
        "batchnorm": batchnorm.note(
            job.module, condition.micro_batch, settings.batch_size, reestimated=settings.reestimate_batchnorm
        ),
        "rollbacks": condition.rollbacks,
        "skipped_steps": condition.skipped,
        "status": status,
        "reason": reason,
        "best_epoch": best.epoch,
        "best_weights": best.weights,
    }
