"""Stage `export_onnx`: three models, skipped ones not exported twice, the gate on parity."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.config.export_onnx import ExportOnnx
from stages.config.model import Model
from stages.data.prepared import Prepared
from stages.deployment import graphs
from stages.export_onnx import Inputs, Outputs, Params, run
from stages.models import registry, store
from stages.models.counting import count
from stages.runtime.exits import GateFailed

NAMES = ("teacher", "student", "pruned")


def save_model(folder: Path, kwargs: dict[str, Any], shape: tuple[int, ...]) -> Path:
    torch.manual_seed(0)
    module = registry.build(Model(name="mlp", kwargs=kwargs), shape, 4).eval()
    folder.mkdir()
    store.save(folder, module, store.Spec("mlp", kwargs, shape, 4))
    store.write_status(folder, "finished", "", count(module, shape), 0.5)
    return folder


def hand_on(source: Path, folder: Path, reason: str) -> Path:
    shutil.copytree(source, folder)
    store.write_status(folder, "skipped", reason, store_counts(source), 0.5)
    return folder


def store_counts(folder: Path) -> Any:
    module, spec = store.load(folder)
    return count(module, spec.input_shape)


def export(images: Path, folders: dict[str, Path], out: Path, **settings: Any) -> list[dict[str, Any]]:
    out.mkdir()
    run(Params(seed=0, threads=1, export_onnx=ExportOnnx(**settings)), Inputs(images, **folders), Outputs(out))
    rows: list[dict[str, Any]] = json.loads((out / "variants.json").read_text())
    return rows


def test_three_models_are_exported_with_their_figures(images: Path, tmp_path: Path) -> None:
    shape = Prepared.open(images).info.shape
    widths = {"teacher": [32, 32], "student": [16], "pruned": [8]}
    folders = {name: save_model(tmp_path / name, {"hidden": width}, shape) for name, width in widths.items()}
    rows = export(images, folders, tmp_path / "out")
    assert [row["name"] for row in rows] == list(NAMES)
    assert [row["file"] for row in rows] == ["teacher.onnx", "student.onnx", "model.onnx"]
    assert not any(row["skipped"] for row in rows)
    assert rows[2]["params"] == 256 * 8 + 8 + 8 * 4 + 4
    assert rows[2]["macs"] == 256 * 8 + 8 * 4
    checks = json.loads((tmp_path / "out/parity.json").read_text())["variants"]
    for name in NAMES:
        assert set(checks[name]["relative_error"]) == {"1", "3", "7"}
        assert max(checks[name]["relative_error"].values()) < 1e-4
        assert 0 <= checks[name]["test_accuracy"] <= 1


def test_what_skipped_stages_handed_on_is_not_exported_again(images: Path, tmp_path: Path) -> None:
    shape = Prepared.open(images).info.shape
    teacher = save_model(tmp_path / "teacher", {"hidden": [8]}, shape)
    student = hand_on(teacher, tmp_path / "student", "distill.enabled is false")
    pruned = hand_on(teacher, tmp_path / "pruned", "prune.enabled is false")
    out = tmp_path / "out"
    rows = export(images, {"teacher": teacher, "student": student, "pruned": pruned}, out)
    assert [row["skipped"] for row in rows] == [
        None,
        "the same weights as the teacher: distill.enabled is false",
        "the same weights as the teacher: prune.enabled is false",
    ]
    assert sorted(path.name for path in out.glob("*.onnx")) == ["model.onnx", "teacher.onnx"]
    assert (out / "model.onnx").read_bytes() == (out / "teacher.onnx").read_bytes()
    for row in rows:
        assert (out / row["file"]).is_file()


def test_a_file_that_differs_from_pytorch_fails_the_gate(images: Path, tmp_path: Path) -> None:
    """No float32 graph is equal to PyTorch within one part in 10^12."""
    shape = Prepared.open(images).info.shape
    teacher = save_model(tmp_path / "teacher", {"hidden": [64, 64]}, shape)
    folders = {"teacher": teacher, "student": teacher, "pruned": teacher}
    with pytest.raises(GateFailed, match=r"the teacher \(mlp\).*within a relative error of 1e-12; it differs by"):
        export(images, folders, tmp_path / "out", max_error=1e-12)


def test_dropout_is_gone(images: Path, tmp_path: Path) -> None:
    shape = Prepared.open(images).info.shape
    teacher = save_model(tmp_path / "teacher", {"hidden": [8], "dropout": 0.5}, shape)
    export(images, {"teacher": teacher, "student": teacher, "pruned": teacher}, tmp_path / "out")
    assert not graphs.operators(graphs.load(tmp_path / "out/model.onnx")) & graphs.TRAINING_ONLY
