"""The recorded history of a training: read, checked, and held as columns."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stages.runtime.exits import BadData
from stages.runtime.files import IDENTITY_FILE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Status = Literal["finished", "stopped", "skipped"]

STEP_COLUMNS = ("step", "epoch", "lr", "loss", "grad_norm", "clipped")
EPOCH_COLUMNS = ("epoch", "step", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "val_macro_f1")
_STATUSES = ("finished", "stopped", "skipped")
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}
_NOTHING: Floats = np.empty(0)


@dataclass(frozen=True)
class Steps:
    """One value per optimizer step, each (S,). A column that was not recorded is empty."""

    step: Ints
    loss: Floats
    epoch: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    lr: Floats = field(default_factory=lambda: _NOTHING)
    grad_norm: Floats = field(default_factory=lambda: _NOTHING)
    clipped: Floats = field(default_factory=lambda: _NOTHING)

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Epochs:
    """One value per epoch, each (E,). A column that was not recorded is empty; accuracies are shares of 1."""

    epoch: Ints
    step: Ints
    train_loss: Floats
    val_loss: Floats
    train_accuracy: Floats = field(default_factory=lambda: _NOTHING)
    val_accuracy: Floats = field(default_factory=lambda: _NOTHING)
    val_macro_f1: Floats = field(default_factory=lambda: _NOTHING)

    def __len__(self) -> int:
        return len(self.epoch)


@dataclass(frozen=True)
class History:
    """What a training recorded, and the settings it ran with."""

    status: Status
    steps: Steps
    epochs: Epochs
    reason: str = ""
    """Why it was stopped or skipped."""
    task: str = "classification"
    classes: int | None = None
    """Number of classes; None for another task."""
    optimizer: str = ""
    clip_norm: float | None = None
    """Bound on the gradient norm; None: not clipped."""
    lr_factor: float = 1.0
    """Times the schedule's learning rate at the end: what rollbacks and plateaus have left of it."""
    planned_epochs: int | None = None
    stage: str = "train"
    restarts: tuple[int, ...] = ()
    """Steps before which the weights were changed from outside (a round of pruning): the loss may jump there."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys of params.yaml -> values that the stage read; empty where the record does not tell."""

    @property
    def chance_loss(self) -> float | None:
        """Cross entropy of a guess that gives every class the same probability: ln C."""
        return math.log(self.classes) if self.task == "classification" and self.classes else None

    @property
    def chance_accuracy(self) -> float | None:
        """Accuracy of such a guess on balanced classes: 1 / C."""
        return 1.0 / self.classes if self.task == "classification" and self.classes else None

    @property
    def fit_key(self) -> str:
        """Where the training's settings stand in params.yaml: `train`, `distill.fit`, `prune.fit`."""
        return self.stage if self.stage == "train" else f"{self.stage}.fit"


def read_history(folder: Path) -> History:
    """Reads `meta.json`, `steps.jsonl`, `epochs.jsonl` and, where it is there, `identity.json`. Raises `BadData`."""
    meta = _object(folder / "meta.json")
    status = meta.get("status")
    if status not in _STATUSES:
        raise BadData(f"{folder / 'meta.json'}: status must be one of {', '.join(_STATUSES)}; got {status!r}")
    skipped = status == "skipped"
    steps = _columns(folder / "steps.jsonl", STEP_COLUMNS, may_be_empty=skipped)
    epochs = _columns(folder / "epochs.jsonl", EPOCH_COLUMNS, may_be_empty=skipped or status == "stopped")
    _ordered(folder / "steps.jsonl", "step", steps["step"], strictly=True)
    _ordered(folder / "steps.jsonl", "epoch", steps["epoch"], strictly=False)
    _ordered(folder / "epochs.jsonl", "epoch", epochs["epoch"], strictly=True)
    stage, settings = _made_by(folder)
    return History(
        status=status,
        reason=str(meta.get("reason") or ""),
        steps=Steps(**_typed(steps, ("step", "epoch"))),
        epochs=Epochs(**_typed(epochs, ("epoch", "step"))),
        task=str(meta.get("task", "classification")),
        classes=_optional(folder, meta, "classes", int),
        optimizer=str(meta.get("optimizer", "")),
        clip_norm=_optional(folder, meta, "clip_norm", float),
        lr_factor=_optional(folder, meta, "lr_factor", float) or 1.0,
        planned_epochs=_optional(folder, meta, "epochs", int),
        stage=stage,
        restarts=_restarts(folder, meta),
        settings=settings,
    )


def number(value: Any) -> float:
    """A recorded number; the strings "nan", "inf", "-inf" stand for what JSON cannot write. Raises `ValueError`."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        word = value.strip().lower()
        return _WORDS[word] if word in _WORDS else float(word)
    raise ValueError(f"no number: {value!r}")


def _typed(columns: Mapping[str, Floats], whole: Sequence[str]) -> dict[str, Any]:
    return {name: values.astype(np.int64) if name in whole else values for name, values in columns.items()}


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadData(f"{path} is missing; a history holds meta.json, steps.jsonl and epochs.jsonl") from None
    except ValueError as error:  # No JSON, or no UTF-8.
        raise BadData(f"{path} is no JSON: {error}; run the training again") from None
    if not isinstance(value, dict):
        raise BadData(f"{path} must hold an object, got {type(value).__name__}; run the training again")
    return value


def _optional(folder: Path, meta: Mapping[str, Any], name: str, kind: type[int] | type[float]) -> Any:
    value = meta.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise BadData(f"{folder / 'meta.json'}: {name} must be a number above 0 or null; got {value!r}")
    return kind(value)


def _restarts(folder: Path, meta: Mapping[str, Any]) -> tuple[int, ...]:
    try:
        return tuple(int(round_["step"]) for round_ in meta.get("rounds") or [])
    except (TypeError, KeyError, ValueError):
        raise BadData(f"{folder / 'meta.json'}: rounds must be a list of {{epoch, step}}") from None


def _columns(path: Path, names: Sequence[str], *, may_be_empty: bool) -> dict[str, Floats]:
    """The named columns of a JSON lines file."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise BadData(f"{path} is missing; a history holds meta.json, steps.jsonl and epochs.jsonl") from None
    except UnicodeDecodeError:
        raise BadData(f"{path} is no UTF-8 text; run the training again") from None
    if not lines and not may_be_empty:
        raise BadData(f"{path} is empty, so there is nothing to diagnose; run the training again")
    rows = [_row(path, at, line, names) for at, line in enumerate(lines, 1)]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return {name: table[:, column] for column, name in enumerate(names)}


def _row(path: Path, at: int, line: str, names: Sequence[str]) -> list[float]:
    try:
        row = json.loads(line)
    except ValueError:
        raise BadData(f"{path}, line {at}: no JSON: {line[:80]!r}; the file is cut short or damaged") from None
    if not isinstance(row, dict):
        raise BadData(f"{path}, line {at}: must be an object with {', '.join(names)}; got {line[:80]!r}")
    missing = [name for name in names if name not in row]
    if missing:
        raise BadData(f"{path}, line {at}: column {', '.join(missing)} is missing; it has {', '.join(sorted(row))}")
    values = []
    for name in names:
        try:
            values.append(number(row[name]))
        except ValueError:
            raise BadData(f"{path}, line {at}: {name} must be a number; got {row[name]!r}") from None
    return values


def _ordered(path: Path, name: str, values: Floats, *, strictly: bool) -> None:
    if not np.all(np.isfinite(values)) or np.any(values != np.floor(values)):
        raise BadData(f"{path}: {name} must be a whole number in every line")
    falls = np.flatnonzero(np.diff(values) <= 0 if strictly else np.diff(values) < 0)
    if falls.size:
        at = int(falls[0])
        raise BadData(
            f"{path}, line {at + 2}: {name} {values[at + 1]:.0f} comes after {values[at]:.0f}; "
            "the lines are out of order, or the file holds two runs"
        )


def _made_by(folder: Path) -> tuple[str, dict[str, Any]]:
    """The stage that left the history, and its settings by dotted key."""
    path = folder / IDENTITY_FILE
    if not path.is_file():
        named = folder.resolve().parent.name
        return (named if named in ("distill", "prune") else "train"), {}
    identity = _object(path)
    return str(identity.get("stage") or "train"), dict(_flat("", identity.get("params") or {}))


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    here = [(prefix, value)] if prefix else []
    if not isinstance(value, dict):
        return here
    below = [pair for name, child in value.items() for pair in _flat(f"{prefix}.{name}" if prefix else name, child)]
    return here + below
