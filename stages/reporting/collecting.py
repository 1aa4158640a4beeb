"""Reads what the pipeline left in `artifacts/`. What is missing stays empty: half a pipeline has a report too."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stages.diagnosis.history import History, read_history
from stages.runtime import measured
from stages.runtime.exits import BadData
from stages.runtime.files import read_json, sha256_file

_AGAIN = "run `dvc checkout`, or the stage again"
_INFO = ("hash", "shape", "dtype", "classes", "counts", "dropped", "duplicates")
_VERDICT = ("verdict", "passed", "sentence", "findings")
TRAININGS = ("train", "distill", "prune")
MEASURE_AGAIN = "measure again with `shipway run profile_model --force`"


@dataclass(frozen=True)
class Row:
    """One model variant. None where it is not known."""

    name: str
    number_type: str | None = None
    accuracy: float | None = None
    macro_f1: float | None = None
    size_bytes: int | None = None
    params: int | None = None
    macs: int | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    throughput_per_s: float | None = None


@dataclass(frozen=True)
class Training:
    """One training: what it recorded and what the diagnosis said."""

    stage: str
    history: History | None
    verdict: Mapping[str, Any] | None


@dataclass(frozen=True)
class Decided:
    """A decision of the pipeline, and why."""

    what: str
    choice: str
    why: str


@dataclass
class Collected:
    """All that the report shows."""

    root: Path
    rows: list[Row] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    targets: list[Mapping[str, Any]] = field(default_factory=list)
    info: Mapping[str, Any] | None = None
    confusion: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Counts by (actual, predicted) class."""
    bundle: Path | None = None
    notes: list[str] = field(default_factory=list)


def collect(root: Path = Path("artifacts")) -> Collected:
    """Reads a workspace's artifacts. A damaged file becomes a note; nothing is written."""
    found = Collected(root)
    found.info = _read(found, root / "prepare_data/data/info.json", *_INFO)
    found.rows = _rows(found)
    found.trainings = [_training(found, stage) for stage in TRAININGS]
    found.decisions = [*_loader(found), *_micro_batch(found), *_number_type(found)]
    targets = _read(found, root / "profile_model/targets/targets.json", "targets")
    found.targets = list(targets["targets"]) if targets else []
    found.confusion = _confusion(found, root / "profile_model/confusion.csv")
    found.bundle = root / "bundle" if (root / "bundle/manifest.json").is_file() else None
    return found


def _read(found: Collected, path: Path, *keys: str) -> dict[str, Any] | None:
    """A JSON object with these keys; None, with a note, when it is damaged; None when it is not there."""
    try:
        value = read_json(path)
    except FileNotFoundError:
        return None
    except ValueError:
        found.notes.append(f"{path} is damaged: it is no JSON; {_AGAIN}")
        return None
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        found.notes.append(f"{path} is damaged: it lacks {', '.join(missing)}; {_AGAIN}")
        return None
    return dict(value)


def _measured(found: Collected, path: Path, of: str | None, *keys: str) -> dict[str, Any] | None:
    """A measurement whose stamp fits; None when it is of something else, damaged or not there."""
    if of is None or _read(found, path, "measured_digest", *keys) is None:
        return None
    return measured.read(path, of=of)


def _rows(found: Collected) -> list[Row]:
    metrics = _read(found, found.root / "profile_model/metrics.json", "variants")
    if metrics is None:
        return []
    latency = _latency(found)
    known = {one.name for one in fields(Row)}
    rows = {name: {**values, **latency.get(name, {})} for name, values in metrics["variants"].items()}
    return [Row(name, **{key: row[key] for key in row if key in known}) for name, row in rows.items()]


def _latency(found: Collected) -> dict[str, dict[str, float]]:
    """Measured times by variant; none, with a note, when they belong to another model."""
    final, path = found.root / "quantize/model/model.onnx", found.root / "profile_model/measured.json"
    values = _measured(found, path, sha256_file(final) if final.is_file() else None, "variants")
    if values is None:
        why = "were not measured on this model" if path.is_file() else "are not measured"
        found.notes.append(f"latencies {why}: {MEASURE_AGAIN}")
        return {}
    return {name: dict(times) for name, times in values["variants"].items()}


def _training(found: Collected, stage: str) -> Training:
    folder = found.root / stage / "history"
    history = None
    if (folder / "meta.json").is_file():
        try:
            history = read_history(folder)
        except BadData as error:
            found.notes.append(error.sentence)
    return Training(stage, history, _read(found, found.root / "diagnose" / stage / "verdict.json", *_VERDICT))


def _loader(found: Collected) -> list[Decided]:
    path = found.root / "benchmark_data/measured.json"
    values = _measured(found, path, (found.info or {}).get("hash"), "chosen", "gain_over_default_loader")
    if values is None:
        return []
    gain = f"{values['gain_over_default_loader']:.1f} times as fast as PyTorch's default loader here"
    return [Decided("Loader", str(values["chosen"]), gain)]


def _micro_batch(found: Collected) -> list[Decided]:
    values = _read(found, found.root / "find_batch_size/decision/decision.json", "micro_batch", "accumulation")
    if values is None:
        return []
    choice = f"{values['micro_batch']} x {values['accumulation']}"
    return [Decided("Micro-batch x accumulation", choice, "fits the memory of " + _device(values.get("device")))]


def _device(key: Any) -> str:
    parts = key if isinstance(key, Mapping) else {}
    name = str(parts.get("gpu") or parts.get("processor") or "this machine")
    return f"{name}, {parts['cores']} cores" if "cores" in parts else name


def _number_type(found: Collected) -> list[Decided]:
    values = _read(found, found.root / "quantize/model/decision.json", "chosen", "reason")
    return [Decided("Number type", str(values["chosen"]), str(values["reason"]))] if values else []


def _confusion(found: Collected, path: Path) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                pair = (row["actual"], row["predicted"])
                counts[pair] = counts.get(pair, 0) + 1
    except FileNotFoundError:
        return {}
    except (KeyError, ValueError, csv.Error):
        found.notes.append(f"{path} is damaged: it must have the columns actual and predicted")
        return {}
    return counts
