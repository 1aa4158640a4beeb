"""A small workspace with real artifacts: histories, verdicts, measurements, models with identities, a bundle."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from stages.config.diagnose import Diagnose
from stages.data.prepared import Prepared
from stages.deployment import bundling
from stages.diagnosis.verdict import diagnose, read_history
from stages.runtime import embedding, measured
from stages.runtime.files import canonical_json, sha256_file, write_json
from tests.unit.deployment.build import conv_net, noisy_patterns, write_prepared
from tests.unit.diagnosis.build import Run, write

CLASSES = ["<script>alert(1)</script>", "b & c", "c", "d"]
TRAIN = {
    "seed": 0,
    "threads": 2,
    "train": {"lr": 0.003, "epochs": 6},
    "model": {"name": "mlp", "kwargs": {"hidden": [8]}},
}
BATCH = {"seed": 0, "threads": 2, "train.epochs": 6}
IDENTITY: dict[str, Any] = {
    "schema": 1, "stage": "bundle", "code": "c" * 64, "data": "d" * 64, "versions": {"python": "3.11"},
    "params": {"seed": 0, "threads": 2, "bundle": {"stored_predictions": 4}},
    "parents": {"artifacts/quantize/model": "a" * 64},
    "ancestors": {
        "train": {"params": TRAIN, "code": "t" * 64, "versions": {}, "parents": {}},
        "find_batch_size": {"params": BATCH, "code": "f", "versions": {}, "parents": {}},
    },
}  # fmt: skip


def identity(stage: str, **changes: Any) -> dict[str, Any]:
    return {**IDENTITY, "stage": stage, **changes}


def weights(path: Path, about: dict[str, Any] | None) -> Path:
    """A real safetensors file, with an identity or without."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {embedding.KEY: canonical_json(about)} if about else None
    safetensors.numpy.save_file({"w": np.arange(6, dtype=np.float32)}, path, metadata=metadata)
    return path


def train_identity() -> dict[str, Any]:
    return identity("train", params=TRAIN, parents={}, ancestors={})


def make_artifacts(root: Path) -> Path:
    """`artifacts/` as a finished pipeline leaves them."""
    samples, labels = noisy_patterns(240)
    data = write_prepared(root / "prepare_data/data", samples, labels, CLASSES)
    _trainings(root)
    model = conv_net(Prepared.open(data), (4, 8))
    quantized = root / "quantize/model"
    quantized.mkdir(parents=True)
    model.metadata_props.add(key=embedding.KEY, value=canonical_json(identity("quantize", ancestors={})))
    (quantized / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    write_json(quantized / "decision.json", {"chosen": "float", "reason": "INT8 is <b>slower</b> here"})
    weights(root / "train/model/weights.safetensors", train_identity())
    write_json(root / "train/model/identity.json", train_identity())
    write_json(
        root / "find_batch_size/decision/decision.json", {"micro_batch": 32, "accumulation": 2, "device": {"cores": 2}}
    )
    _profile(root, quantized / "model.onnx")
    _bundle(root, data, quantized)
    return root


def _trainings(root: Path) -> None:
    good, bad = Run(epochs=6, per_epoch=10), Run(epochs=6, per_epoch=10, f1_share=0.4)
    for stage, run in (("train", good), ("distill", bad)):
        folder = write(root / stage / "history", run.history(0))
        write_json(root / "diagnose" / stage / "verdict.json", diagnose(read_history(folder), Diagnose()).as_json())


def _profile(root: Path, final: Path) -> None:
    row = {"accuracy": 0.98, "macro_f1": 0.97, "size_bytes": 40960, "params": 9000, "macs": 120000}
    rows = {"teacher": {**row, "number_type": "float"}, "final": {**row, "size_bytes": 10240, "number_type": "int8"}}
    folder = root / "profile_model"
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps({"variants": rows}))
    times = {"teacher": {"p50_ms": 1.5, "p95_ms": 2.25, "throughput_per_s": 10.0}}
    measured.write(
        folder / "measured.json",
        {"variants": {**times, "final": {"p50_ms": 0.5, "p95_ms": 0.75, "throughput_per_s": 30.0}}},
        of=sha256_file(final),
    )
    write_json(folder / "targets/targets.json", {
        "all_hold": True, "targets": [{"name": "min_accuracy", "bound": 0.9, "got": 0.98, "holds": True}],
        "final": rows["final"], "baseline": {**rows["teacher"], "name": "teacher"},
    })  # fmt: skip
    with (folder / "confusion.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["actual", "predicted"])
        writer.writerows([[CLASSES[0], CLASSES[0]]] * 3 + [[CLASSES[1], CLASSES[0]]])


def _bundle(root: Path, data: Path, quantized: Path) -> None:
    folder = root / "bundle"
    folder.mkdir()
    write_json(folder / "identity.json", IDENTITY)
    targets = json.loads((root / "profile_model/targets/targets.json").read_text())
    contents = bundling.Contents(Prepared.open(data), quantized, targets, {}, stored_predictions=4, threads=1)
    bundling.make(folder, contents, "# a card\n")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, message: str) -> str:
    """Commits all that is there; the commit."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD").strip()
