"""Synthetic histories in the recorded columns: shapes as real trainings of a small classifier show them."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.diagnosis.history import Epochs, Floats, History, Steps

CHANCE = math.log(10)
Shape = Callable[[Floats], Floats]
"""A function of the run's progress t in (0, 1]."""


def learns(floor: float = 0.02, speed: float = 12.0, start: float = CHANCE) -> Shape:
    return lambda t: floor + (start - floor) * np.exp(-speed * t)


def flat(level: float) -> Shape:
    return lambda t: np.full_like(t, level)


def rises(start: float, end: float, power: float = 1.0) -> Shape:
    return lambda t: start + (end - start) * t**power


def cosine(peak: float = 0.05, warmup: float = 0.1) -> Shape:
    return lambda t: peak * np.where(t < warmup, t / warmup, 0.5 * (1 + np.cos(math.pi * (t - warmup) / (1 - warmup))))


_LEARNS, _VAL_LEARNS, _CONSTANT = learns(), learns(floor=0.07), flat(0.05)


@dataclass
class Run:
    """A training as shapes over its progress; `history` draws it with noise."""

    loss: Shape = _LEARNS
    val_loss: Shape = _VAL_LEARNS
    accuracy: Shape = lambda t: 1.0 - 0.9 * np.exp(-14 * t)
    val_accuracy: Shape = lambda t: 0.975 - 0.87 * np.exp(-14 * t)
    f1_share: float = 1.0
    norm: Shape = lambda t: 0.1 + 2.0 * np.exp(-6 * t)
    lr: Shape = _CONSTANT
    noise: float = 0.25
    """Standard deviation of the steps' log loss."""
    val_noise: float = 0.03
    epochs: int = 30
    per_epoch: int = 40
    classes: int = 10
    clip_norm: float | None = 5.0
    optimizer: str = "sgd"
    status: str = "finished"
    stage: str = "train"
    settings: dict[str, Any] | None = None

    def history(self, seed: int) -> History:
        random = np.random.default_rng(seed)
        count = self.epochs * self.per_epoch
        at = np.arange(1, count + 1) / count
        ends = np.arange(1, self.epochs + 1) / self.epochs
        settled = 1.0 - np.exp(-np.arange(count) / 20)  # An untrained network has about the same loss on every batch.
        loss = self.loss(at) * np.exp(settled * random.normal(0, self.noise, count))
        norm = self.norm(at) * np.exp(random.normal(0, self.noise, count))
        bound = self.clip_norm or math.inf
        steps = Steps(
            step=np.arange(1, count + 1),
            loss=loss,
            epoch=np.repeat(np.arange(1, self.epochs + 1), self.per_epoch),
            lr=self.lr(at),
            grad_norm=norm,
            clipped=(norm > bound).astype(float),
        )
        val_accuracy = np.clip(self.val_accuracy(ends) + random.normal(0, 0.003, self.epochs), 0, 1)
        epochs = Epochs(
            epoch=np.arange(1, self.epochs + 1),
            step=np.arange(1, self.epochs + 1) * self.per_epoch,
            train_loss=loss.reshape(self.epochs, self.per_epoch).mean(axis=1),
            val_loss=self.val_loss(ends) * np.exp(random.normal(0, self.val_noise, self.epochs)),
            train_accuracy=np.clip(self.accuracy(ends) + random.normal(0, 0.002, self.epochs), 0, 1),
            val_accuracy=val_accuracy,
            val_macro_f1=val_accuracy * self.f1_share,
        )
        settings = {"train.lr": 0.05, "train.epochs": self.epochs, "train.weight_decay": 0.05}
        return History(
            status=self.status,  # type: ignore[arg-type]
            steps=steps,
            epochs=epochs,
            classes=self.classes,
            optimizer=self.optimizer,
            clip_norm=self.clip_norm,
            planned_epochs=self.epochs,
            stage=self.stage,
            settings=settings if self.settings is None else self.settings,
        )


def written(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def write(folder: Path, history: History, **meta: Any) -> Path:
    """The history's files, as the training leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "task": history.task,
        "classes": history.classes,
        "clip_norm": history.clip_norm,
        "reason": history.reason,
    }
    fields |= {"status": history.status, "optimizer": history.optimizer, "epochs": history.planned_epochs, **meta}
    (folder / "meta.json").write_text(json.dumps(fields))
    for name, table in (("steps", history.steps), ("epochs", history.epochs)):
        columns = {key: getattr(table, key) for key in table.__dataclass_fields__}
        rows = [
            {key: int(v[at]) if key in ("step", "epoch") else written(v[at]) for key, v in columns.items()}
            for at in range(len(table))
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "curves.csv").write_text("")
    return folder
