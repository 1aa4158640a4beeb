"""Whether ONNX Runtime gives what PyTorch gives, on real samples and at several batch sizes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from stages.data.prepared import Prepared
from stages.deployment import evaluation, sessions
from stages.runtime.exits import BadData

BATCHES = (1, 3, 7)
"""Odd sizes: a batch that was fixed or folded by mistake shows."""


def relative_errors(
    module: nn.Module, path: Path, prepared: Prepared, threads: int, sizes: Sequence[int] = BATCHES
) -> dict[int, float]:
    """Per batch size: largest |ONNX - PyTorch| over the largest |PyTorch|, on test samples. Raises `BadData`."""
    indices = prepared.indices("test")
    if len(indices) == 0:
        raise BadData("the test split is empty; raise prepare_data.test_share and run prepare_data again")
    loaded = sessions.session(path, threads)
    errors: dict[int, float] = {}
    start = 0
    for size in sizes:
        raw = prepared.read(np.take(indices, range(start, start + size), mode="wrap"))
        start += size
        with torch.no_grad():
            expected = module(torch.from_numpy(raw)).numpy()
        got = evaluation.checked(loaded, raw, path)
        if got.shape != expected.shape:
            return {**errors, size: float("inf")}
        errors[size] = float(np.abs(got - expected).max() / max(float(np.abs(expected).max()), 1e-12))
    return errors
