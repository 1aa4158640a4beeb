"""The history of a training: JSON lines that survive a kill, deterministic columns only.

Recorded values stay on the device and are written in blocks, so that no step waits for the device.
"""

import csv
import json
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.runtime.files import read_json, write_bytes, write_json

META, STEPS, EPOCHS, CURVES = "meta.json", "steps.jsonl", "epochs.jsonl", "curves.csv"
EPOCH_COLUMNS = ("epoch", "step", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "val_macro_f1")


def number(value: float) -> float | str:
    """A finite number with the nine digits that a float32 has; "nan", "inf" or "-inf" otherwise, as JSON has none."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


@dataclass
class Step:
    """What one optimizer step leaves, still on the device. Lists hold one entry per micro-batch."""

    epoch: int
    step: int
    lr: float
    sizes: list[int]
    losses: list[Tensor] = field(default_factory=list)
    correct: list[Tensor] = field(default_factory=list)
    grad_norm: Tensor | None = None


@dataclass
class Sums:
    """Running sums over the epoch's steps so far."""

    loss: float = 0.0
    correct: int = 0
    samples: int = 0


class NonFinite(Exception):
    """A recorded step had a loss or gradient norm that is NaN or infinite. The step is the last one in the history."""

    def __init__(self, step: int, what: str) -> None:
        self.step = step
        self.what = what
        super().__init__(f"{what} at step {step}")


class History:
    """Writes steps.jsonl and epochs.jsonl in a working folder; `seal` completes them."""

    def __init__(self, folder: Path, clip_norm: float | None, flush_every: int, *, stop_on_nan: bool) -> None:
        self.folder = folder
        self.clip_norm = clip_norm
        self.flush_every = flush_every
        self.stop_on_nan = stop_on_nan
        self.sums = Sums()
        self._pending: list[Step] = []
        folder.mkdir(parents=True, exist_ok=True)

    def step(self, step: Step) -> None:
        """Takes a step; writes a block when enough have come. Raises `NonFinite` as `flush` does."""
        self._pending.append(step)
        if len(self._pending) >= self.flush_every:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending. With `stop_on_nan`, raises `NonFinite` at the first bad step.

        What came after it in the block is dropped, so that the history does not depend on the block's length.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        losses = torch.stack([loss for step in pending for loss in step.losses]).double().tolist()
        correct = torch.stack([right for step in pending for right in step.correct]).tolist()
        norms = torch.stack([step.grad_norm for step in pending if step.grad_norm is not None]).double().tolist()
        lines, bad, at = [], None, 0
        for step, norm in zip(pending, norms, strict=True):
            micro = range(at, at + len(step.sizes))
            at += len(step.sizes)
            loss_sum = sum(losses[i] * size for i, size in zip(micro, step.sizes, strict=True))
            samples = sum(step.sizes)
            self.sums.loss += loss_sum
            self.sums.correct += sum(correct[i] for i in micro)
            self.sums.samples += samples
            loss = loss_sum / samples
            lines.append(self._row(step, loss, norm))
            if self.stop_on_nan and not (math.isfinite(loss) and math.isfinite(norm)):
                bad = NonFinite(step.step, f"loss {loss}, gradient norm {norm}")
                break
        self._append(STEPS, lines)
        if bad is not None:
            raise bad

    def epoch(self, row: dict[str, Any]) -> None:
        """Writes an epoch's row and starts new sums."""
        self._append(EPOCHS, [{name: row[name] for name in EPOCH_COLUMNS}])
        self.sums = Sums()

    def position(self) -> dict[str, int]:
        """Lengths of the two files in bytes, made durable: for the checkpoint."""
        return {name: self._sync(name) for name in (STEPS, EPOCHS)}

    def rewind(self, position: dict[str, int]) -> None:
        """Cuts the files back to a checkpoint's `position`."""
        for name in (STEPS, EPOCHS):
            with (self.folder / name).open("ab") as file:
                file.truncate(position.get(name, 0))

    def seal(self, meta: dict[str, Any]) -> None:
        """Writes meta.json: the history is complete, `copy_published` may take it."""
        write_json(self.folder / META, meta)

    def _row(self, step: Step, loss: float, norm: float) -> dict[str, Any]:
        clipped = self.clip_norm is not None and norm > self.clip_norm
        row = {"step": step.step, "epoch": step.epoch, "lr": step.lr, "loss": number(loss)}
        return {**row, "grad_norm": number(norm), "clipped": clipped}

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _sync(self, name: str) -> int:
        with (self.folder / name).open("ab") as file:
            os.fsync(file.fileno())
            return file.tell()


def copy_published(source: Path, folder: Path) -> None:
    """Copies a finished history and writes its curves."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (META, STEPS, EPOCHS):
        shutil.copyfile(source / name, folder / name)
    rows = [json.loads(line) for line in (folder / EPOCHS).read_text(encoding="utf-8").splitlines()]
    write_curves(folder / CURVES, rows)


def write_skipped(folder: Path, meta: dict[str, Any] | None = None) -> None:
    """The history of a skipped stage: meta.json with status `skipped`, no rows."""
    write_json(folder / META, {**(meta or {}), "task": "classification", "status": "skipped"})
    for name in (STEPS, EPOCHS):
        write_bytes(folder / name, b"")
    write_curves(folder / CURVES, [])


def write_curves(path: Path, rows: list[dict[str, Any]]) -> None:
    """The epochs' columns as CSV, for `dvc plots`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, EPOCH_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a history."""
    return dict(read_json(folder / META))
