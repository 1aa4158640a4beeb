"""Chooses between the float model and its INT8 candidates: validation selects, test confirms, the clock decides."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from stages.config.base import identifying
from stages.config.quantize import Quantize
from stages.data.prepared import Prepared
from stages.deployment import calibration, evaluation, graphs, quantization, sessions
from stages.deployment.latency import Latency, latency
from stages.deployment.number_types import NumberTypes, number_types
from stages.deployment.ranges import Range
from stages.runtime import decisions
from stages.runtime.files import sha256_file
from stages.runtime.progress import say, track

STAGE, FLOAT = "quantize", "float"


@dataclass(frozen=True)
class Trial:
    """How one candidate did on validation."""

    name: str
    accuracy: float | None
    refused: str | None
    """Why it is out; None when it keeps the accuracy bound."""


@dataclass
class Decision:
    """What is handed on, and why. `to_json` holds no measured time and nothing of the machine, nor does `reason`."""

    chosen: str
    """`int8` or `float`."""
    candidate: str | None
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Latency] = field(default_factory=dict)
    """By name of candidate; empty when nothing was measured."""

    kept: bool = False
    """True when an earlier run of this machine made the choice, and what was measured now does not overturn it."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for decision.json."""
        return {"chosen": self.chosen, "candidate": self.candidate, "reason": self.reason, **self.evidence}


@dataclass(frozen=True)
class Task:
    """What is to be quantized, and where the candidates are put."""

    path: Path
    prepared: Prepared
    settings: Quantize
    seed: int
    threads: int
    folder: Path

    def file(self, name: str) -> Path:
        """The file of a candidate, or of the float model."""
        return self.path if name == FLOAT else self.folder / f"{name}.onnx"


def decide(task: Task) -> Decision:
    """Makes, runs, scores and times the candidates. Raises `BadData` for a broken model or broken data only."""
    model = graphs.load(task.path)
    quantization.require_float(model, task.path)
    samples = calibration.choose(task.prepared, task.settings.calibration_samples, task.seed)
    types = number_types(decisions.processor_flags(), task.settings.reduce_range)
    before = evaluation.score(task.path, task.prepared, "val", task.threads).accuracy
    trials, note = _try_all(task, samples, types, before)
    decision = _choose(task, trials)
    decision.evidence |= {
        "status": "finished",
        "number_types": types.to_json(),
        "calibration": {
            "method": task.settings.calibration,
            "samples": len(samples.indices),
            "per_class": list(samples.per_class),
            "outliers_left_out": list(samples.outliers),
        },
        "preprocessing": note or "done",
        "bounds": {"max_drop": task.settings.max_drop, "min_speedup": task.settings.min_speedup},
        "validation": {"float": before, "candidates": [asdict(trial) for trial in trials]},
    }
    return decision


def _try_all(
    task: Task, samples: calibration.Samples, types: NumberTypes, before: float
) -> tuple[list[Trial], str | None]:
    prepared, note = quantization.preprocess(task.path)
    if note:
        say(f"quantize: {note}")
    calibrated = _Calibrated(task, prepared, samples)
    trials = [
        _try(task, candidate, calibrated, types, before)
        for candidate in track(quantization.CANDIDATES, "quantize: candidates")
    ]
    return trials, note


class _Calibrated:
    """Rewritten graphs and their ranges, each made once: candidates share them."""

    def __init__(self, task: Task, prepared: onnx.ModelProto, samples: calibration.Samples) -> None:
        self._task, self._prepared, self._samples = task, prepared, samples
        self._made: dict[bool, tuple[quantization.Ready, dict[str, Range]]] = {}

    def graph(self, raw_input: bool) -> tuple[quantization.Ready, dict[str, Range]]:
        """Raises `QuantizationFailed`."""
        if raw_input not in self._made:
            task = self._task
            ready = quantization.rewrite(self._prepared, raw_input)
            ranges = calibration.activation_ranges(
                ready.model, task.prepared, self._samples, task.settings.calibration, task.threads, task.folder
            )
            self._made[raw_input] = ready, ranges
        return self._made[raw_input]


def _try(
    task: Task, candidate: quantization.Candidate, calibrated: _Calibrated, types: NumberTypes, before: float
) -> Trial:
    """A candidate counts only after it has run: it may load, and crash on its first run."""
    path = task.file(candidate.name)
    try:
        ready, ranges = calibrated.graph(candidate.raw_input)
        graphs.save(quantization.quantize(ready, candidate, ranges, types), path)
        accuracy = evaluation.score(path, task.prepared, "val", task.threads).accuracy
    except quantization.QuantizationFailed as error:
        return Trial(candidate.name, None, f"cannot be made: {error}")
    except sessions.RunFailed as error:
        return Trial(candidate.name, None, error.sentence)
    return Trial(candidate.name, accuracy, too_low("validation", accuracy, before, task.settings.max_drop))


def too_low(split: str, accuracy: float, before: float, max_drop: float) -> str | None:
    """Why an accuracy breaks the bound, or None."""
    drop = before - accuracy
    if drop <= max_drop + 1e-12:  # Differences of shares carry rounding errors.
        return None
    return (
        f"accuracy on {split} falls by {drop:.4f}, from {before:.4f} to {accuracy:.4f}; at most {max_drop:g} is allowed"
    )


def _choose(task: Task, trials: list[Trial]) -> Decision:
    standing = [trial.name for trial in trials if trial.refused is None]
    if not standing:
        return Decision(FLOAT, None, "; ".join(f"{trial.name}: {trial.refused}" for trial in trials))
    names = [FLOAT, *standing]
    sample = task.prepared.read(task.prepared.indices("val")[:1])
    paths = {name: task.file(name) for name in names}

    def measure() -> dict[str, Latency]:
        return latency(paths, sample, task.threads, task.settings.repeats, task.settings.warmup)

    timings = measure()
    name, kept = fastest(task, timings, measure)
    because = reason(name, task.settings)
    decision = Decision(FLOAT, None, because) if name == FLOAT else _confirm(task, name, because)
    decision.timings, decision.kept = timings, kept
    return decision


def fastest(
    task: Task, timings: Mapping[str, Latency], again: Callable[[], Mapping[str, Latency]] | None = None
) -> tuple[str, bool]:
    """The sticky choice by latency relative to float, and whether it is a former one that was kept.

    INT8 carries the factor by which it must be faster. `again` measures once more, before a former choice is given up.
    """
    costs = _costs(task.settings, timings)
    more = None if again is None else lambda: _costs(task.settings, again())
    name, kept = decisions.stick(STAGE, decision_key(task), costs, {name: name for name in costs}, more)
    return str(name), kept


def _costs(settings: Quantize, timings: Mapping[str, Latency]) -> dict[str, float]:
    factor = settings.min_speedup
    costs = {name: factor / taken.speedup_over(timings[FLOAT]) for name, taken in timings.items() if name != FLOAT}
    if settings.fixed is None:
        costs[FLOAT] = 1.0  # Last: at a tie INT8 is exactly as fast as it must be.
    return costs


def reason(name: str, settings: Quantize) -> str:
    """Why a candidate is handed on: of the decision, not of this run's clock, since the decision outlives the run."""
    if settings.fixed is not None:
        return "quantize.fixed asks for it, and it keeps the accuracy"
    if name == FLOAT:
        return f"INT8 keeps the accuracy, but was not {settings.min_speedup:g} times as fast as float when decided"
    return f"keeps the accuracy, and was at least {settings.min_speedup:g} times as fast as float when decided"


def decision_key(task: Task) -> dict[str, Any]:
    """What the choice depends on: another one of these is another decision."""
    return {
        "device": decisions.device_key(),
        "model": sha256_file(task.path),
        "data": task.prepared.info.hash,
        "threads": task.threads,
        "settings": identifying(task.settings),
        "versions": {name: version(name) for name in ("onnx", "onnxruntime")},
    }


def _confirm(task: Task, name: str, because: str) -> Decision:
    """Test confirms once. A failed confirmation means float, never another candidate."""
    accuracies = {
        which: evaluation.score(task.file(which), task.prepared, "test", task.threads).accuracy
        for which in (FLOAT, name)
    }
    evidence = {"test": {"float": accuracies[FLOAT], "int8": accuracies[name]}}
    refused = too_low("test", accuracies[name], accuracies[FLOAT], task.settings.max_drop)
    if refused:
        return Decision(FLOAT, None, f"{name} was chosen on validation, but {refused}", evidence)
    return Decision("int8", name, because, evidence)
