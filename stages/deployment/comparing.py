"""Compares bundles on the present test split: the candidate, and the one in production."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.prepared import Prepared
from stages.deployment import predict
from stages.deployment.evaluation import Scores, batches
from stages.deployment.latency import latency
from stages.deployment.verifying import verify
from stages.runtime.exits import BadData
from stages.runtime.files import digest

_REPEATS, _WARMUP = 200, 20
_KIB = 1024.0


def compare(bundles: Mapping[str, Path], data: Path, threads: int) -> dict[str, dict[str, Any]]:
    """For each bundle its digest and what it is worth on the test split of `data`.

    `accuracy`, `macro_f1`, `size_kib`, `p50_ms` and `p95_ms` (batch 1, side by side). A bundle that cannot take this
    data (other classes, another shape) has `why` instead, and one that is damaged has no digest either.
    """
    prepared = Prepared.open(data)
    loaded: dict[str, predict.Bundle] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, folder in bundles.items():
        try:
            loaded[name] = _load(folder, threads)
        except BadData as error:
            found[name] = {"digest": None, "why": f"it is damaged: {error.sentence}"}
        else:
            found[name] = {"digest": digest(folder), **_worth(loaded[name], prepared)}
    fit = {name: loaded[name] for name, row in found.items() if "why" not in row}
    sample = prepared.read(prepared.indices("test")[:1])
    paths = {name: bundle.folder / bundle.manifest["model"] for name, bundle in fit.items()}
    for name, timed in latency(paths, sample, threads, _REPEATS, _WARMUP).items():
        found[name] |= {"p50_ms": round(timed.p50_ms, 4), "p95_ms": round(timed.p95_ms, 4)}
    return found


def _load(folder: Path, threads: int) -> predict.Bundle:
    verify(folder)
    try:
        return predict.Bundle(folder, threads)
    except predict.RefusedError as error:
        raise BadData(str(error)) from None


def _worth(bundle: predict.Bundle, prepared: Prepared) -> dict[str, Any]:
    info = prepared.info
    if tuple(bundle.labels) != info.classes:
        return {"why": f"its classes are others: {', '.join(bundle.labels[:5])} ..., not those of the data"}
    if bundle.shape != tuple(info.shape) or str(bundle.dtype) != info.dtype:
        return {"why": f"it takes {bundle.dtype} {bundle.shape}, the data is {info.dtype} {tuple(info.shape)}"}
    indices = prepared.indices("test")
    predicted = [bundle.probabilities(raw).argmax(axis=1) for raw in batches(prepared, indices)]
    scores = Scores(prepared.labels[indices], np.concatenate(predicted).astype(np.int64), len(info.classes))
    size = (bundle.folder / bundle.manifest["model"]).stat().st_size
    return {
        "accuracy": round(scores.accuracy, 6),
        "macro_f1": round(scores.macro_f1, 6),
        "samples": len(indices),
        "size_kib": round(size / _KIB, 1),
    }
