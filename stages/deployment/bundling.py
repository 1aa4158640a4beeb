"""Makes the bundle: the model to deploy and all that is needed to use it and to check it."""

import re
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from stages.data.prepared import Prepared
from stages.deployment import graphs, predict
from stages.deployment.sessions import INPUT_NAME, OUTPUT_NAME
from stages.runtime.exits import BadData
from stages.runtime.files import files_below, read_json, sha256_bytes, sha256_file, write_bytes, write_json

MANIFEST, MODEL = "manifest.json", "model.onnx"
FORMAT = 1
TOLERANCES = {"float": 1e-4, "int8": 0.02}
"""How far a stored probability may lie off: other processors sum 8-bit products in another order, or saturate."""

_DISTRIBUTION = "shipway"


@dataclass(frozen=True)
class Contents:
    """What goes into a bundle."""

    prepared: Prepared
    model: Path
    """The artifact of `quantize`: a folder with model.onnx and decision.json."""
    targets: dict[str, Any]
    """targets.json of `profile_model`."""
    verdicts: dict[str, dict[str, Any]]
    """Stage -> verdict.json of `diagnose`."""
    stored_predictions: int
    threads: int


def make(folder: Path, contents: Contents, card: str) -> None:
    """Writes the bundle's files into `folder`, the manifest last. Raises `BadData`."""
    decision = read_json(contents.model / "decision.json")
    if graphs.identity_text(contents.model / MODEL) is None:
        raise BadData(f"{contents.model / MODEL} carries no identity: it was not made by `quantize`; run it again")
    for file in graphs.files_of(contents.model / MODEL):
        shutil.copyfile(file, folder / file.name)
    write_json(folder / "labels.json", list(contents.prepared.info.classes))
    shutil.copyfile(Path(predict.__file__), folder / "predict.py")
    write_bytes(folder / "README.md", card.encode())
    samples = contents.prepared.read(contents.prepared.indices("test")[: contents.stored_predictions])
    np.save(folder / "samples.npy", np.ascontiguousarray(samples), allow_pickle=False)
    write_json(folder / "predictions.json", {"tolerance": TOLERANCES[decision["chosen"]], "predictions": []})
    _write_manifest(folder, contents, decision)
    _store_predictions(folder, contents)
    _write_manifest(folder, contents, decision)


def _store_predictions(folder: Path, contents: Contents) -> None:
    """By the bundle's own code, so that what is stored is what a user gets."""
    bundle = predict.Bundle(folder, contents.threads)
    samples = np.load(folder / "samples.npy", allow_pickle=False)
    rows = [
        {"label": bundle.labels[int(found.argmax())], "probabilities": [float(f"{value:.6f}") for value in found]}
        for found in bundle.probabilities(samples)
    ]
    stored = read_json(folder / "predictions.json")
    write_json(folder / "predictions.json", {**stored, "predictions": rows})


def _write_manifest(folder: Path, contents: Contents, decision: dict[str, Any]) -> None:
    info = contents.prepared.info
    files = {
        file.relative_to(folder).as_posix(): {"sha256": sha256_file(file), "bytes": file.stat().st_size}
        for file in files_below(folder)
        if file.name != MANIFEST
    }
    identity = graphs.identity_text(folder / MODEL) or ""
    manifest = {
        "format": FORMAT,
        "shipway": _own_version(),
        "model": MODEL,
        "number_type": decision["chosen"],
        "identity": sha256_bytes(identity.encode()),
        "input": {"name": INPUT_NAME, "dtype": info.dtype, "shape": [None, *info.shape]},
        "output": {"name": OUTPUT_NAME, "dtype": "float32", "shape": [None, len(info.classes)]},
        "preprocessing": {
            "where": "inside the graph: (input / scale - mean) / std per channel or column; give raw values",
            "scale": info.scale,
            "mean": list(info.mean),
            "std": list(info.std),
        },
        "resize": None if info.resize is None else list(info.resize),
        "files": files,
    }
    write_json(folder / MANIFEST, {**manifest, "checksum": predict.manifest_checksum(manifest)})


def _own_version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:  # Run from a clone without installation.
        project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        found = re.search(r'^version = "([^"]+)"', project, re.MULTILINE)
        return found.group(1) if found else "unknown"
