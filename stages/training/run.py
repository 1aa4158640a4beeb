"""The state of a training under way: position, optimizer, best score; how it is saved, resumed and finished."""

import copy
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from stages.checkpoints import lineage
from stages.checkpoints.store import Saved
from stages.runtime.progress import say
from stages.training.evaluate import Evaluation, evaluate
from stages.training.history import History, Step, Sums, copy_published, number
from stages.training.job import Fitted, Job
from stages.training.optimizers import optimizer
from stages.training.schedule import warmup_steps

TIMINGS = "timings.jsonl"
"""Beside the checkpoints: seconds and samples per second of each epoch. They vary, so they are no part of history."""


@dataclass
class Best:
    """The best epoch so far by validation."""

    epoch: int
    """Counted from 1; 0: the starting weights."""

    step: int
    """Of the checkpoint that holds the weights."""

    val: Evaluation | None


@dataclass
class Run:
    """Where a training stands. `epoch` counts from 1; `window` are the epoch's steps that are done, `step` all."""

    job: Job
    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    history: History
    segments: list[lineage.Segment]
    steps_per_epoch: int
    total_steps: int
    warmup_steps: int
    epoch: int
    window: int
    step: int
    best: Best

    @classmethod
    def start(cls, job: Job, steps_per_epoch: int) -> "Run":
        """From the newest checkpoint, or from the beginning; then the starting weights are the first checkpoint."""
        settings = job.settings
        total = settings.epochs * steps_per_epoch
        saved = job.store.latest()
        history = History(job.store.history, settings.clip_norm, settings.log_every_steps, stop_on_nan=job.stop_on_nan)
        run = cls(
            job=job,
            optimizer=optimizer(job.module, settings),
            parameters=[parameter for parameter in job.module.parameters() if parameter.requires_grad],
            history=history,
            segments=[],
            steps_per_epoch=steps_per_epoch,
            total_steps=total,
            warmup_steps=warmup_steps(total, 0.1 if settings.warmup_share is None else settings.warmup_share),
            epoch=1,
            window=0,
            step=0,
            best=Best(epoch=0, step=0, val=None),
        )
        if saved is not None:
            run._restore(saved)
        else:
            history.rewind({})
        run.segments.append(lineage.begin(job.store.code, run.step))
        if saved is None:
            run.save()
        return run

    def advance(self, record: Step) -> None:
        """Counts a step that is done. Raises `NonFinite` when the block it completes holds a bad one."""
        self.step += 1
        self.window += 1
        self.history.step(record)

    def end_epoch(self, val: Evaluation, seconds: float, steps_done: int) -> None:
        """Records the epoch, keeps the best, moves on to the next one, saves."""
        sums = self.history.sums
        train_loss, train_accuracy = sums.loss / sums.samples, sums.correct / sums.samples
        self.history.epoch(
            {
                "epoch": self.epoch,
                "step": self.step,
                "train_loss": number(train_loss),
                "train_accuracy": number(train_accuracy),
                "val_loss": number(val.loss),
                "val_accuracy": number(val.accuracy),
                "val_macro_f1": number(val.macro_f1),
            }
        )
        improved = is_better(val, self.best.val)
        if improved:
            self.best = Best(self.epoch, self.step, val)
        self._time(seconds, steps_done)
        say(
            f"{self.job.name}: epoch {self.epoch} of {self.job.settings.epochs}: train loss {train_loss:.4f}, accuracy "
            f"{train_accuracy:.2%}; validation loss {val.loss:.4f}, accuracy {val.accuracy:.2%} ({seconds:.1f} s)"
        )
        due = improved or self.epoch % self.job.settings.save_every_epochs == 0
        self.epoch, self.window = self.epoch + 1, 0
        if due and self.epoch <= self.job.settings.epochs:  # The last epoch is saved by `finish`.
            self.save()

    def save(self, status: str = "running", reason: str = "") -> None:
        """Writes what is recorded, then a checkpoint. Raises `NonFinite` rather than save a bad state."""
        self.history.flush()
        if self.segments:
            self.segments[-1]["to_step"] = self.step
        payload = {
            "module": self.job.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": {
                "epoch": self.epoch,
                "window": self.window,
                "sums": asdict(self.history.sums),
                "position": self.history.position(),
            },
        }
        about = {
            "status": status,
            "reason": reason,
            "epoch": min(self.epoch, self.job.settings.epochs),
            "total_steps": self.total_steps,
            "micro_batch": self.job.micro_batch,
            "device": str(self.job.device),
            "best": asdict(self.best),
            "lineage": self.segments,
        }
        self.job.store.save(self.step, payload, about, best_step=self.best.step)

    def finish(self, status: str, reason: str) -> Fitted:
        """Publishes the history, marks the run as ended, and leaves the best weights in the module."""
        if status == "stopped":  # The present state is bad: it is not saved.
            self._take_best()
        self.history.seal(self._history_meta(status, reason))
        self.save(status, reason)
        copy_published(self.history.folder, self.job.history)
        self._take_best()
        return _fitted(self.job, status, reason, self.best, self.segments, reused=False)

    def _take_best(self) -> None:
        self.job.module.load_state_dict(self.job.store.load(self.best.step).payload["module"])

    def _restore(self, saved: Saved) -> None:
        progress, about = saved.payload["progress"], saved.meta
        self.job.module.load_state_dict(saved.payload["module"])
        self.optimizer.load_state_dict(copy.deepcopy(saved.payload["optimizer"]))  # Out of the mapped file.
        self.epoch, self.window, self.step = progress["epoch"], progress["window"], saved.step
        self.history.sums = Sums(**progress["sums"])
        self.history.rewind(progress["position"])
        self.best = _best(about["best"])
        self.segments = list(about["lineage"])
        say(f"{self.job.name}: goes on after step {self.step} of {self.total_steps}")

    def _history_meta(self, status: str, reason: str) -> dict[str, Any]:
        settings = self.job.settings
        return {
            "task": "classification",
            "classes": len(self.job.prepared.info.classes),
            "epochs": settings.epochs,
            "steps_per_epoch": self.steps_per_epoch,
            "train_samples": len(self.job.prepared.indices("train")),
            "optimizer": settings.optimizer,
            "lr": settings.lr,
            "clip_norm": settings.clip_norm,
            "status": status,
            "reason": reason,
            "best_epoch": self.best.epoch,
        }

    def _time(self, seconds: float, steps_done: int) -> None:
        samples = min(steps_done * self.job.settings.batch_size, len(self.job.prepared.indices("train")))
        row = {"epoch": self.epoch, "seconds": round(seconds, 4), "samples_per_s": round(samples / seconds, 1)}
        with (self.job.store.folder / TIMINGS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def is_better(new: Evaluation, best: Evaluation | None) -> bool:
    """Higher accuracy, or the same with a lower loss. NaN is never better."""
    if not math.isfinite(new.loss):
        return False
    return best is None or (new.accuracy, -new.loss) > (best.accuracy, -best.loss)


def reuse(job: Job) -> Fitted | None:
    """The result of a run that ended before, or None. With `store.reuse_finished` off, such a run is removed."""
    store = job.store
    if not store.finished:
        return None
    saved = store.latest()
    if saved is None or not store.reuse_finished:
        store.clear()
        return None
    about = saved.meta
    best = _best(about["best"])
    copy_published(store.history, job.history)
    job.module.load_state_dict(store.load(best.step).payload["module"])
    say(f"{job.name}: this very training ended before ({about['status']}); its result is taken")
    return _fitted(job, about["status"], about["reason"], best, about["lineage"], reused=True)


def _fitted(job: Job, status: str, reason: str, best: Best, segments: list[lineage.Segment], *, reused: bool) -> Fitted:
    job.module.eval()
    val = best.val
    if val is None:  # No epoch ended well: the starting weights, which nobody has looked at yet.
        val = evaluate(job.module, job.preprocess, job.prepared, "val", batch_size=job.micro_batch, loader=job.loader)
    return Fitted(status, reason, best.epoch, val, segments, reused)


def _best(values: dict[str, Any]) -> Best:
    val = values["val"]
    evaluation = None if val is None else Evaluation(**{**val, "confusion": tuple(map(tuple, val["confusion"]))})
    return Best(values["epoch"], values["step"], evaluation)
