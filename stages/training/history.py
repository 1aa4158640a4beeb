"""The history of a training: JSON lines that survive a kill, deterministic columns only.

Recorded values stay on the device and are written in blocks, so that no step waits for the device.
"""

import csv
import hashlib
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.runtime.exits import DiskFault
from stages.runtime.files import read_json, sha256_bytes, write_bytes, write_json
from stages.training.layers import LayerNorms
from stages.training.ranks import Ranks

META, CURVES = "meta.json", "curves.csv"
STEPS, EPOCHS, LAYERS, EVENTS = "steps.jsonl", "epochs.jsonl", "layers.jsonl", "events.jsonl"
GROWING = (STEPS, EPOCHS, LAYERS, EVENTS)
EPOCH_COLUMNS = ("epoch", "step", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "val_macro_f1")
"""Of every epoch's row, and of curves.csv; a row of epochs.jsonl may hold more."""

Row = dict[str, Any]
Position = dict[str, tuple[int, str]]
"""Of each file: its length in bytes, and the SHA-256 of its content so far."""


def number(value: float) -> float | str:
    """A finite number with the nine digits that a float32 has; "nan", "inf" or "-inf" otherwise, as JSON has none."""
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)


@dataclass
class Step:
    """What one optimizer step leaves, still on the device. Lists hold one entry per micro-batch."""

    epoch: int
    step: int
    lr: float
    clip_norm: float | None
    """Bound of this step; None: not clipped."""

    sizes: list[int]
    """Of this process's micro-batches."""

    samples: int
    """Of the window, all ranks together."""

    losses: list[Tensor] = field(default_factory=list)
    predicted: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    grad_norm: Tensor | None = None
    layers: LayerNorms | None = None
    skipped: bool = False
    """Not taken, since float16 overflowed."""


@dataclass
class Sums:
    """Running sums over the epoch's steps so far."""

    classes: int
    loss: float = 0.0
    confusion: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """Counts (classes, classes), [actual][predicted], on the CPU."""

    def __post_init__(self) -> None:
        if not len(self.confusion):
            self.confusion = torch.zeros(self.classes, self.classes, dtype=torch.int64)

    def add(self, labels: Tensor, predicted: Tensor) -> None:
        """Counts a block of answers, both int64 (n,)."""
        cells = (labels * self.classes + predicted).cpu().numpy()
        counts = np.bincount(cells, minlength=self.classes**2)
        self.confusion += torch.from_numpy(counts).view(self.classes, self.classes)


class NonFinite(Exception):
    """A recorded step had a loss or gradient norm that is NaN or infinite. The step is the last one in the history."""

    def __init__(self, step: int, epoch: int, what: str) -> None:
        self.step = step
        self.epoch = epoch
        self.what = what
        super().__init__(f"{what} at step {step}")


class AlteredHistory(DiskFault):
    """A file of the working history is missing, or not as it was written."""

    def __init__(self, path: Path) -> None:
        self.what = f"{path} is missing or was altered"
        super().__init__(f"{self.what}; run again: the training goes on from where its history is whole")


class History:
    """Writes the growing files in a working folder; `seal` completes them."""

    def __init__(self, folder: Path, classes: int, layer_names: Sequence[str], ranks: Ranks) -> None:
        self.folder = folder
        self._ranks = ranks
        self.classes = classes
        self.sums = Sums(classes)
        self._layer_names = list(layer_names)
        self._pending: list[Step] = []
        self._written = {name: (0, hashlib.sha256()) for name in GROWING}
        self._sealed: Position = {}

    def step(self, step: Step) -> None:
        """Takes a step."""
        self._pending.append(step)

    def __len__(self) -> int:
        """Steps that wait to be written."""
        return len(self._pending)

    def flush(self, *, ends_on_nan: bool) -> tuple[list[Row], NonFinite | None]:
        """Writes what is pending and returns its rows, with what is wrong with the last of them.

        With `ends_on_nan`, the first bad step is the last row: what came after it in the block is dropped, so that the
        history does not depend on the block's length. A gradient norm that overflowed in a skipped step is no fault.
        """
        if not self._pending:
            return [], None
        pending, self._pending = self._pending, []
        norms = torch.stack([step.grad_norm for step in pending if step.grad_norm is not None]).double().tolist()
        rows, bad = [], None
        for step, loss_sum, norm in zip(pending, self._loss_sums(pending), norms, strict=True):
            self.sums.loss += loss_sum
            loss = loss_sum / step.samples
            rows.append(_row(step, loss, norm))
            if ends_on_nan and not (math.isfinite(loss) and (step.skipped or math.isfinite(norm))):
                bad = NonFinite(step.step, step.epoch, f"loss {loss}, gradient norm {norm}")
                break
        done = pending[: len(rows)]
        self._count(done)
        self._append(STEPS, rows)
        self._append(LAYERS, [self._layer_row(step) for step in done if step.layers is not None])
        return rows, bad

    def _loss_sums(self, steps: list[Step]) -> list[float]:
        """Each step's losses, summed over the samples of all ranks. One wait for the device."""
        losses = [loss for step in steps for loss in step.losses]
        values = iter(torch.stack(losses).double().tolist() if losses else [])
        sums = torch.tensor([sum(next(values) * size for size in step.sizes) for step in steps], dtype=torch.float64)
        self._ranks.sum([sums])
        found: list[float] = sums.tolist()
        return found

    def _count(self, steps: list[Step]) -> None:
        counted = Sums(self.classes)
        answers = [[part for step in steps for part in getattr(step, name)] for name in _ANSWERS]
        if answers[0]:
            counted.add(*map(torch.cat, answers))
        self._ranks.sum([counted.confusion])
        self.sums.confusion += counted.confusion

    def forget(self) -> None:
        """Drops what is pending: the steps are taken again."""
        self._pending = []

    def epoch(self, row: Row) -> None:
        """Writes an epoch's row and starts new sums."""
        self._append(EPOCHS, [row])
        self.sums = Sums(self.classes)

    def event(self, row: Row) -> None:
        """Writes an event: what was recovered from, when, on which samples."""
        self._append(EVENTS, [row])

    def position(self) -> Position:
        """Length in bytes and SHA-256 of each file, for the checkpoint; durable after `sync`."""
        return {name: (size, sha.hexdigest()) for name, (size, sha) in self._written.items()} | self._sealed

    def sync(self) -> None:
        """Makes what is written durable."""
        for name in GROWING:
            with (self.folder / name).open("ab") as file:
                os.fsync(file.fileno())

    def rewind(self, position: Position, *, keep_events: bool = False) -> None:
        """Cuts the files back to a checkpoint's `position` ({}: to nothing); what is pending is dropped.

        Raises `AlteredHistory`, and leaves the files as they are, when one of them is not as it was written.
        """
        self.forget()
        require_intact(self.folder, position)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in GROWING:
            if keep_events and name == EVENTS:
                continue
            size = position[name][0] if name in position else 0
            with (self.folder / name).open("ab") as file:
                file.truncate(size)
            self._written[name] = (size, hashlib.sha256((self.folder / name).read_bytes()))

    def seal(self, meta: Row) -> None:
        """Writes meta.json: the history is complete, `copy_published` may take it."""
        write_json(self.folder / META, meta)
        content = (self.folder / META).read_bytes()
        self._sealed = {META: (len(content), sha256_bytes(content))}

    def _layer_row(self, step: Step) -> Row:
        norms = step.layers
        if norms is None:
            raise RuntimeError("no layers were recorded")
        columns = zip(norms.grads.tolist(), norms.weights.tolist(), norms.updates.tolist(), strict=True)
        layers = {
            name: {
                "grad_norm": number(grad),
                "weight_norm": number(weight),
                "update_ratio": number(update / weight) if weight else None,
            }
            for name, (grad, weight, update) in zip(self._layer_names, columns, strict=True)
        }
        return {"step": step.step, "epoch": step.epoch, "layers": layers}

    def _append(self, name: str, rows: list[Row]) -> None:
        if rows:
            content = "".join(json.dumps(row) + "\n" for row in rows).encode()
            with (self.folder / name).open("ab") as file:
                file.write(content)
            size, sha = self._written[name]
            sha.update(content)
            self._written[name] = (size + len(content), sha)


_ANSWERS = ("labels", "predicted")


def _row(step: Step, loss: float, norm: float) -> Row:
    clipped = step.clip_norm is not None and norm > step.clip_norm and not step.skipped
    row = {"step": step.step, "epoch": step.epoch, "lr": step.lr, "loss": number(loss)}
    return {**row, "grad_norm": number(norm), "clipped": clipped, "skipped": step.skipped}


def require_intact(folder: Path, position: Position, *, ended: bool = False) -> None:
    """Raises `AlteredHistory` unless each file begins with what a checkpoint's `position` says; `ended`: is it."""
    for name, (size, expected) in position.items():
        path = folder / name
        found = path.read_bytes() if path.is_file() else b""
        found = found if ended else found[:size]
        if len(found) != size or hashlib.sha256(found).hexdigest() != expected:
            raise AlteredHistory(path)


def copy_published(source: Path, folder: Path) -> None:
    """Copies a finished history and writes its curves."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (META, *GROWING):
        shutil.copyfile(source / name, folder / name)
    write_curves(folder / CURVES, read_rows(folder / EPOCHS))


def read_rows(path: Path) -> list[Row]:
    """The rows of one of the growing files."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_skipped(folder: Path, meta: Row | None = None) -> None:
    """The history of a skipped stage: meta.json with status `skipped`, no rows."""
    write_json(folder / META, {**(meta or {}), "task": "classification", "status": "skipped"})
    for name in GROWING:
        write_bytes(folder / name, b"")
    write_curves(folder / CURVES, [])


def write_curves(path: Path, rows: list[Row]) -> None:
    """The epochs' columns as CSV, for `dvc plots`."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, EPOCH_COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def read_meta(folder: Path) -> Row:
    """meta.json of a history."""
    return dict(read_json(folder / META))
