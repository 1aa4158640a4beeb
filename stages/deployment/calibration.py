"""Calibration: which samples, whether they are sound, and the range of every activation that they give."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from stages.data.prepared import Indices, Prepared
from stages.deployment import ranges, sessions
from stages.deployment.ranges import Range
from stages.runtime.exits import BadData
from stages.runtime.seeds import derive

BATCH = 16
OUTLIER_FACTOR = 10.0
"""A sample is an outlier when its largest standardised value exceeds the median sample's by this factor."""

MAX_OUTLIER_SHARE = 0.05
"""More of them are no outliers but what the data looks like: they stay."""

_SHOWN = 5


@dataclass(frozen=True)
class Samples:
    """What the activations' ranges are computed from."""

    indices: Indices
    outliers: tuple[int, ...]
    """Indices of samples that were left out."""
    per_class: tuple[int, ...]
    """Chosen samples of each class."""


def choose(prepared: Prepared, wanted: int, seed: int) -> Samples:
    """Chooses up to `wanted` samples of the calibration split, the classes in turn, outliers left out.

    Raises `BadData` for NaN or infinity, and for one class only: its ranges would say nothing about the others.
    """
    indices = prepared.indices("calibration")
    labels = prepared.labels[indices]
    classes = len(prepared.info.classes)
    if classes > 1 and len(np.unique(labels)) < 2:
        raise BadData(
            "the calibration split must hold samples of at least two classes, it holds "
            f"{len(indices)} of one; raise prepare_data.calibration_share or check the data"
        )
    order = np.random.default_rng(derive(seed, "calibration")).permutation(len(indices))
    chosen = np.sort(_in_turn(indices[order], labels[order], wanted))
    largest = _largest(prepared, chosen)
    outliers = _outliers(largest) if prepared.info.dtype != "uint8" else np.zeros(len(chosen), dtype=bool)
    kept = chosen[~outliers]
    counts = np.bincount(prepared.labels[kept], minlength=classes)
    return Samples(kept, tuple(map(int, chosen[outliers])), tuple(map(int, counts)))


def _in_turn(indices: Indices, labels: Indices, wanted: int) -> Indices:
    """The first of every class, then the second, and so on."""
    rank = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        rank[mine] = np.arange(len(mine))
    return indices[np.argsort(rank, kind="stable")[:wanted]]


def _largest(prepared: Prepared, indices: Indices) -> npt.NDArray[np.float64]:
    """Per sample the largest standardised |value|. Raises `BadData` for NaN or infinity."""
    mean, std = np.asarray(prepared.info.mean), np.asarray(prepared.info.std)
    largest = np.empty(len(indices))
    for start in range(0, len(indices), BATCH):
        part = slice(start, start + BATCH)
        raw = prepared.read(indices[part]).astype(np.float64)
        standardised = np.abs((raw / prepared.info.scale - mean) / np.where(std > 0, std, 1.0))
        largest[part] = standardised.reshape(len(raw), -1).max(axis=1)
    broken = indices[~np.isfinite(largest)]
    if len(broken):
        shown = ", ".join(prepared.describe(int(index)) for index in broken[:_SHOWN])
        raise BadData(
            f"calibration data must be finite; NaN or infinity in {len(broken)} samples: {shown}; "
            "remove them, or set data.on_bad_sample: drop and run prepare_data again",
            {"samples": [int(index) for index in broken]},
        )
    return largest


def _outliers(largest: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    far = largest > OUTLIER_FACTOR * np.median(largest)
    return far if far.mean() <= MAX_OUTLIER_SHARE else np.zeros_like(far)


def activation_ranges(
    model: onnx.ModelProto, prepared: Prepared, samples: Samples, method: str, threads: int, folder: Path
) -> dict[str, Range]:
    """The range of every float activation of the graph, over the samples.

    `method`: `minmax`, `moving_average`, `percentile` or `entropy`. `folder` takes a temporary model.
    """
    with _watched(model, threads, folder) as (loaded, names):
        extremes = {name: ranges.Extremes() for name in names}
        for outputs in _seen(loaded, names, prepared, samples.indices):
            for name, values in outputs.items():
                extremes[name].see(values)
        whole = {name: seen.whole() for name, seen in extremes.items() if seen.lows}
        if method == "minmax":
            return whole
        if method == "moving_average":
            return {name: extremes[name].averaged() for name in whole}
        counts = {name: np.zeros(ranges.BINS, dtype=np.int64) for name in whole}
        for outputs in _seen(loaded, names, prepared, samples.indices):
            for name in whole:
                counts[name] += ranges.histogram(outputs[name], whole[name])
    find = {"percentile": ranges.percentile, "entropy": ranges.entropy}[method]
    return {name: find(counts[name], whole[name]) for name in whole}


@contextmanager
def _watched(
    model: onnx.ModelProto, threads: int, folder: Path
) -> Iterator[tuple[ort.InferenceSession, tuple[str, ...]]]:
    """A session that gives every float activation, and their names."""
    watched = copy.deepcopy(model)
    constants = {tensor.name for tensor in watched.graph.initializer}
    known = {info.name: info for info in (*watched.graph.input, *watched.graph.value_info, *watched.graph.output)}
    floats = [
        name
        for name, info in known.items()
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT and name not in constants
    ]
    given = {info.name for info in watched.graph.output}
    made = {name for node in watched.graph.node for name in node.output}
    watched.graph.output.extend(known[name] for name in floats if name in made - given)
    path = folder / "watched.onnx"
    onnx.save(watched, path)
    try:
        yield sessions.session(path, threads, optimize=False), tuple(n for n in floats if n in made | _inputs(watched))
    finally:
        path.unlink(missing_ok=True)


def _inputs(model: onnx.ModelProto) -> set[str]:
    return {info.name for info in model.graph.input}


def _seen(
    loaded: ort.InferenceSession, names: tuple[str, ...], prepared: Prepared, indices: Indices
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    for start in range(0, len(indices), BATCH):
        raw = prepared.read(indices[start : start + BATCH])
        made = [name for name in names if name != sessions.INPUT_NAME]
        outputs = dict(zip(made, loaded.run(made, {sessions.INPUT_NAME: raw}), strict=True))
        if sessions.INPUT_NAME in names:
            outputs[sessions.INPUT_NAME] = raw
        yield outputs
