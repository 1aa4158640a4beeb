"""Accuracy of a saved ONNX file on a split: what is deployed is what is scored."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from stages.data.prepared import Indices, Prepared
from stages.deployment import sessions

BATCH = 128


@dataclass(frozen=True)
class Scores:
    """How a model's predictions compare with the labels."""

    actual: Indices
    """int64 (n,)"""
    predicted: Indices
    """int64 (n,)"""
    classes: int

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return float(np.mean(self.actual == self.predicted))

    @property
    def macro_f1(self) -> float:
        """Mean of the classes' F1 scores; a class that is neither there nor predicted is left out."""
        confusion = self.confusion
        right = np.diag(confusion).astype(np.float64)
        total = confusion.sum(axis=0) + confusion.sum(axis=1)
        present = total > 0
        return float(np.mean(2 * right[present] / total[present]))

    @property
    def confusion(self) -> npt.NDArray[np.int64]:
        """Counts (classes, classes): row the actual class, column the predicted one."""
        counts = np.zeros((self.classes, self.classes), dtype=np.int64)
        np.add.at(counts, (self.actual, self.predicted), 1)
        return counts


def score(path: Path, prepared: Prepared, split: str, threads: int) -> Scores:
    """Runs the file on every sample of a split. Raises `BadData` when it does not run, or its logits are not finite."""
    loaded = sessions.session(path, threads)
    indices = prepared.indices(split)
    logits = np.concatenate([checked(loaded, raw, path) for raw in batches(prepared, indices)])
    return Scores(prepared.labels[indices], logits.argmax(axis=1).astype(np.int64), len(prepared.info.classes))


def batches(prepared: Prepared, indices: Indices, size: int = BATCH) -> Iterator[npt.NDArray[Any]]:
    """Raw samples in order, `size` at a time."""
    for start in range(0, len(indices), size):
        yield prepared.read(indices[start : start + size])


def checked(loaded: ort.InferenceSession, raw: npt.NDArray[Any], path: Path) -> npt.NDArray[np.float32]:
    """Logits of raw samples. Raises `sessions.RunFailed` when the model crashes or gives NaN or infinity."""
    try:
        logits = sessions.run(loaded, raw)
    except Exception as error:
        raise sessions.RunFailed(f"{path.name} loads, but fails when it runs: {sessions.one_line(error)}") from None
    if not np.isfinite(logits).all():
        raise sessions.RunFailed(f"{path.name} gives NaN or infinity")
    return logits
