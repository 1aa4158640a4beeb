"""Stage `export_onnx`: teacher, student and pruned model as ONNX files that take raw input."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue

from stages.config.base import StageParams
from stages.config.export_onnx import ExportOnnx
from stages.data.prepared import Prepared
from stages.deployment import evaluation, graphs, parity
from stages.deployment.export import Deployable, export
from stages.models import store
from stages.models.counting import count
from stages.models.preprocess import Preprocess
from stages.runtime.exits import GateFailed
from stages.runtime.files import sha256_file, write_json
from stages.runtime.progress import track
from stages.runtime.stage import Result, main

VARIANTS_FILE, PARITY_FILE = "variants.json", "parity.json"


class Params(StageParams):
    """What the stage reads of params.yaml."""

    export_onnx: ExportOnnx


@dataclass(frozen=True)
class Inputs:
    """What the stage reads."""

    data: Path = Path("artifacts/prepare_data/data")
    teacher: Path = Path("artifacts/train/model")
    student: Path = Path("artifacts/distill/model")
    pruned: Path = Path("artifacts/prune/model")
    verdict: Path = Path("artifacts/diagnose/prune")  # Its gate has passed: it only keeps the order.


@dataclass(frozen=True)
class Outputs:
    """What the stage leaves."""

    model: Path = Path("artifacts/export_onnx/model")


@dataclass(frozen=True)
class Variant:
    """A model of the pipeline and the file that it is exported to."""

    name: str
    folder: Path
    file: str


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """See the module. Raises `BadParams` when a model cannot be exported, `GateFailed` when its file differs."""
    prepared = Prepared.open(inputs.data)
    variants = (
        Variant("teacher", inputs.teacher, "teacher.onnx"),
        Variant("student", inputs.student, "student.onnx"),
        Variant("pruned", inputs.pruned, "model.onnx"),
    )
    rows: list[dict[str, Any]] = []
    checks: dict[str, Any] = {}
    exported: dict[str, Variant] = {}
    for variant in track(variants, "export_onnx: models"):
        weights = _weights_digest(variant.folder)
        if weights in exported:
            rows.append(_skipped(variant, exported[weights], rows, outputs.model))
            continue
        exported[weights] = variant
        row, checks[variant.name] = _export(variant, prepared, params, outputs.model)
        rows.append(row)
    bound = params.export_onnx.max_error
    write_json(outputs.model / VARIANTS_FILE, rows)
    write_json(outputs.model / PARITY_FILE, {"max_error": bound, "opset": params.export_onnx.opset, "variants": checks})
    return Result(summary=_summary(rows, checks, params.export_onnx.opset), evidence=_evidence(checks))


def _weights_digest(folder: Path) -> str:
    """Equal for two folders exactly when they hold the same network: a skipped stage hands both files on."""
    return sha256_file(folder / store.WEIGHTS) + sha256_file(folder / store.STRUCTURE)


def _export(
    variant: Variant, prepared: Prepared, params: Params, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    network, spec = store.load(variant.folder)
    info = prepared.info
    module = Deployable(Preprocess(info.mean, info.std, info.scale, info.shape), network).eval()
    what = f"the {variant.name} ({spec.name})"
    dtype = torch.uint8 if info.dtype == "uint8" else torch.float32
    path = folder / variant.file
    graphs.save(export(module, info.shape, dtype, params.export_onnx.opset, what), path)
    counts = count(network, spec.input_shape)
    row = {"name": variant.name, "file": variant.file, "params": counts.params, "macs": counts.macs, "skipped": None}
    return row, _check(module, path, prepared, params, what)


def _check(module: Deployable, path: Path, prepared: Prepared, params: Params, what: str) -> dict[str, Any]:
    bound = params.export_onnx.max_error
    errors = parity.relative_errors(module, path, prepared, params.threads)
    worst = max(errors.values())
    if not worst <= bound:
        size = max(errors, key=lambda batch: errors[batch])
        raise GateFailed(
            f"{what}: the exported file must give what PyTorch gives within a relative error of {bound:g}; it differs "
            f"by {worst:.3g} at batch {size}; look for operations that ONNX computes otherwise, or raise "
            "export_onnx.max_error",
            {"errors": {str(batch): error for batch, error in errors.items()}},
        )
    scores = evaluation.score(path, prepared, "test", params.threads)
    rounded = {str(batch): float(f"{error:.1e}") for batch, error in errors.items()}
    return {"relative_error": rounded, "test_accuracy": scores.accuracy, "size_bytes": graphs.size_bytes(path)}


def _skipped(variant: Variant, same: Variant, rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """A row for a model that is another one handed on. `model.onnx` is what goes on, so it is written all the same."""
    original = next(row for row in rows if row["name"] == same.name)
    if variant.file == "model.onnx":
        for file in graphs.files_of(folder / same.file):
            target = variant.file if file.name == same.file else file.name
            if target != file.name:
                shutil.copyfile(file, folder / target)
        original = {**original, "file": variant.file}
    why = store.read_status(variant.folder)["reason"]
    return {**original, "name": variant.name, "skipped": f"the same weights as the {same.name}: {why}"}


def _summary(rows: list[dict[str, Any]], checks: dict[str, Any], opset: int) -> str:
    worst = max(max(check["relative_error"].values()) for check in checks.values())
    skipped = [row["name"] for row in rows if row["skipped"]]
    note = f"; {', '.join(skipped)} handed on, not exported again" if skipped else ""
    return f"exported {', '.join(checks)} at opset {opset}, equal to PyTorch within {worst:.1e}{note}"


def _evidence(checks: dict[str, Any]) -> dict[str, JsonValue]:
    return {"variants": checks}


if __name__ == "__main__":
    main(run, "export_onnx", libraries=("torch", "onnx", "onnxscript"))
