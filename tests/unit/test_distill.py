"""The stage distill on small data: what it leaves, its gate, and that it repeats itself byte for byte."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from stages.config.distill import Distill
from stages.config.fit import Fit
from stages.config.model import Model
from stages.diagnosis.history import read_history
from stages.models import store
from stages.runtime.exits import BadData
from stages.runtime.files import read_json
from tests.unit.compression.pipeline import CLASSES, FIT, Folder, content, make

BIG = Model(name="mlp", kwargs={"hidden": [64]})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A teacher."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("SHIPWAY_STATE", str(root / "state"))
        made = make(root)
        made.train(BIG)
    return made


@pytest.fixture
def folder(trained: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    root = tmp_path / "work"
    shutil.copytree(trained.root, root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("SHIPWAY_STATE", str(root / "state"))
    return Folder(root)


def test_leaves_a_student_that_is_smaller_and_as_good(folder: Folder) -> None:
    result = folder.distill()
    metrics, status = read_json(folder.metrics("distill")), store.read_status(folder.model("distill"))
    module, spec = store.load(folder.model("distill"))
    teacher = store.read_status(folder.model("train"))
    assert result.gate is None
    assert status["status"] == "finished"
    assert status["val_accuracy"] == metrics["val_accuracy"] >= metrics["teacher_val_accuracy"] - 0.1
    assert metrics["teacher_val_accuracy"] == pytest.approx(teacher["val_accuracy"])
    assert metrics["drop"] == pytest.approx(metrics["teacher_val_accuracy"] - metrics["val_accuracy"], abs=1e-8)
    assert metrics["params"] == sum(p.numel() for p in module.parameters()) < teacher["params"]
    assert (metrics["teacher_params"], metrics["teacher_macs"]) == (teacher["params"], teacher["macs"])
    assert spec.kwargs == {"hidden": [16]}
    assert f"({metrics['params'] / teacher['params']:.2f}x)" in result.summary
    history = read_history(folder.history("distill"))
    assert history.status == "finished"
    assert len(history.epochs) == FIT.epochs


def test_a_second_run_gives_the_same_bytes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.distill()
    first = content(folder.root / "distill")
    torch.randn(17)  # Whatever drew random numbers before must not matter.
    monkeypatch.setenv("SHIPWAY_STATE", str(folder.root / "another state"))
    folder.distill()
    assert content(folder.root / "distill") == first


def test_a_finished_training_is_taken_again_also_with_another_bound(folder: Folder) -> None:
    folder.distill()
    first = content(folder.model("distill"))
    again = folder.distill(max_drop=0.5)
    assert again.run["reused"] is True
    assert content(folder.model("distill")) == first


def test_the_teacher_makes_a_difference(folder: Folder) -> None:
    weights = []
    for settings in ({"alpha": 0.0}, {"alpha": 0.9}, {"alpha": 0.9, "temperature": 1.0}):
        folder.distill(**settings)
        weights.append((folder.model("distill") / store.WEIGHTS).read_bytes())
    assert len(set(weights)) == 3


def test_alpha_0_is_training_alone(folder: Folder) -> None:
    # With no weight on the teacher, another teacher must change nothing in the student.
    folder.distill(alpha=0.0)
    first = (folder.model("distill") / store.WEIGHTS).read_bytes()
    folder.train(Model(name="mlp", kwargs={"hidden": [48]}))
    folder.distill(alpha=0.0)
    assert (folder.model("distill") / store.WEIGHTS).read_bytes() == first


def test_gate_fails_with_figures_and_what_to_change(folder: Folder) -> None:
    result = folder.distill(fit=Fit(epochs=1, batch_size=32, lr=1e-7), max_drop=0.05)
    assert result.gate is not None
    assert "at most 5.00% points below the teacher's" in result.gate
    assert "distill.fit.epochs" in result.gate
    assert f"{result.evidence['val_accuracy']:.2%}" in result.gate
    assert store.read_status(folder.model("distill"))["status"] == "finished"
    store.load(folder.model("distill"))


def test_a_drop_of_just_the_bound_passes(folder: Folder) -> None:
    folder.distill(fit=Fit(epochs=1, batch_size=32, lr=1e-7))
    exact = read_json(folder.metrics("distill"))["drop"]
    assert exact > 0.0
    assert folder.distill(fit=Fit(epochs=1, batch_size=32, lr=1e-7), max_drop=exact).gate is None


def test_disabled_hands_the_teacher_on_byte_for_byte(folder: Folder) -> None:
    result = folder.distill(enabled=False)
    teacher, handed = content(folder.model("train")), content(folder.model("distill"))
    for name in (store.WEIGHTS, store.STRUCTURE):
        assert handed[name] == teacher[name]
    status = store.read_status(folder.model("distill"))
    assert (status["status"], status["reason"]) == (
        "skipped",
        "distill.enabled is false: the teacher is handed on unchanged",
    )
    assert status["params"] == store.read_status(folder.model("train"))["params"]
    assert result.summary.startswith("skipped: ")
    assert read_history(folder.history("distill")).status == "skipped"
    assert read_json(folder.metrics("distill"))["params"] == status["params"]


def test_a_student_that_is_no_smaller_is_warned_about(folder: Folder) -> None:
    result = folder.distill(student=Model(name="mlp", kwargs={"hidden": [80]}))
    assert "warning: the student is no smaller than the teacher" in result.summary
    assert "warning" not in folder.distill().summary


def test_a_training_that_stops_itself_is_left_to_the_diagnosis(folder: Folder) -> None:
    result = folder.distill(fit=Fit(epochs=2, batch_size=32, optimizer="sgd", lr=1e30, clip_norm=None))
    assert result.gate is None
    assert "stopped itself" in result.summary
    assert store.read_status(folder.model("distill"))["status"] == "stopped"
    assert read_history(folder.history("distill")).status == "stopped"


def test_a_teacher_of_other_data_is_refused(folder: Folder) -> None:
    module, spec = store.load(folder.model("train"))
    module.get_submodule("3").weight.data = torch.zeros(CLASSES + 1, 64)
    module.get_submodule("3").bias.data = torch.zeros(CLASSES + 1)
    store.save(folder.model("train"), module, store.Spec(spec.name, spec.kwargs, spec.input_shape, CLASSES + 1))
    with pytest.raises(BadData, match="knows 5 classes"):
        folder.distill()


def test_smoothing_that_would_have_no_effect_is_refused() -> None:
    settings: dict[str, Any] = {"alpha": 1.0, "fit": Fit(label_smoothing=0.1)}
    with pytest.raises(ValidationError, match="has no effect with alpha 1"):
        Distill(**settings)
