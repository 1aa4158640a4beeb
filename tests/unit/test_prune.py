"""The stage prune on small data: target, accuracy bound, what happens on a miss, and that it repeats itself."""

import shutil
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from stages.compression.pruning.rounds import bounds, divide
from stages.config.editing import changes_to, edit
from stages.config.fit import Fit
from stages.config.loading import load
from stages.config.model import Model
from stages.config.prune import Prune
from stages.diagnosis.history import read_history
from stages.models import store
from stages.models.counting import count
from stages.reporting.restoring import restore
from stages.runtime.exits import GateFailed
from stages.runtime.files import read_json
from tests.unit.compression.pipeline import FIT, ROOT, Folder, content, make

STUDENT = Model(name="mlp", kwargs={"hidden": [32, 32]})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A teacher and a student."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("SHIPWAY_STATE", str(root / "state"))
        made = make(root)
        made.train(Model(name="mlp", kwargs={"hidden": [64]}))
        made.distill(student=STUDENT)
    return made


@pytest.fixture
def folder(trained: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    root = tmp_path / "work"
    shutil.copytree(trained.root, root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("SHIPWAY_STATE", str(root / "state"))
    return Folder(root)


def test_reaches_the_target_and_leaves_a_smaller_model(folder: Folder) -> None:
    result = folder.prune()
    metrics, status = read_json(folder.metrics("prune")), store.read_status(folder.model("prune"))
    before = store.read_status(folder.model("distill"))
    module, spec = store.load(folder.model("prune"))
    assert result.gate is None
    assert status["status"] == "finished"
    assert metrics["macs_ratio"] <= 0.5
    assert metrics["macs"] == count(module, spec.input_shape).macs == status["macs"] <= 0.5 * before["macs"]
    assert metrics["params"] == sum(p.numel() for p in module.parameters()) < before["params"]
    assert (metrics["unpruned_params"], metrics["unpruned_macs"]) == (before["params"], before["macs"])
    assert metrics["val_accuracy"] == status["val_accuracy"] >= before["val_accuracy"] - 0.2
    assert all(layer.out_features % 4 == 0 for layer in module.modules() if isinstance(layer, torch.nn.Linear))
    expected = f"validation {before['val_accuracy']:.2%} -> {status['val_accuracy']:.2%}"
    assert result.summary.startswith("pruned: MACs ")
    assert result.summary.endswith(expected)


def test_all_rounds_are_one_history_that_goes_on_counting(folder: Folder) -> None:
    folder.prune(iterations=3)
    history, meta = read_history(folder.history("prune")), read_json(folder.history("prune") / "meta.json")
    steps_per_epoch = meta["steps_per_epoch"]
    assert history.epochs.epoch.tolist() == list(range(1, FIT.epochs + 1))
    assert history.steps.step.tolist() == list(range(1, FIT.epochs * steps_per_epoch + 1))
    assert history.epochs.step.tolist() == [steps_per_epoch * e for e in range(1, FIT.epochs + 1)]
    assert meta["epochs"] == FIT.epochs
    assert meta["rounds"][0] == {"epoch": 1, "step": 1}
    assert len(meta["rounds"]) == read_json(folder.metrics("prune"))["rounds"] > 1
    curves = (folder.history("prune") / "curves.csv").read_text().splitlines()
    assert len(curves) == FIT.epochs + 1
    best = history.epochs.val_accuracy[meta["best_epoch"] - 1]
    assert best == pytest.approx(store.read_status(folder.model("prune"))["val_accuracy"])


def test_a_second_run_gives_the_same_bytes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.prune()
    first = content(folder.root / "prune")
    torch.randn(17)
    monkeypatch.setenv("SHIPWAY_STATE", str(folder.root / "another state"))
    folder.prune()
    assert content(folder.root / "prune") == first


def test_finished_rounds_are_taken_again_and_the_rest_is_trained(folder: Folder) -> None:
    folder.prune()
    first = content(folder.root / "prune")
    rounds = sorted((folder.root / "state" / "checkpoints" / "prune").iterdir(), key=lambda f: f.stat().st_mtime)
    assert len(rounds) == 2
    shutil.rmtree(rounds[-1])
    again = folder.prune()
    assert [again.run[f"round {n}"]["reused"] for n in (1, 2)] == [True, False]
    assert content(folder.root / "prune") == first


@pytest.mark.parametrize("stage", ["train", "distill", "prune"])
def test_the_parameters_of_a_checkpoint_can_be_restored(folder: Folder, stage: str) -> None:
    if stage == "prune":
        folder.prune(alpha=0.5, iterations=3)
    params = folder.root / "params.yaml"
    shutil.copy(ROOT / "params.yaml", params)
    newest = max((folder.root / "state/checkpoints" / stage).rglob("*.pt"))
    edit(changes_to(restore(newest)["sections"], params), params)
    restored = load(params)
    fit = restored["train"] if stage == "train" else restored[stage]["fit"]
    assert (fit["epochs"], fit["batch_size"], fit["lr"]) == (FIT.epochs, FIT.batch_size, FIT.lr)
    if stage == "prune":
        assert (restored["prune"]["alpha"], restored["prune"]["iterations"]) == (0.5, 3)


def test_the_clock_never_decides_what_is_handed_on(folder: Folder) -> None:
    with pytest.raises(GateFailed, match=r"raise prune\.time_limit_s"):
        folder.prune(on_miss="keep_best", time_limit_s=1e-6)


def test_disabled_hands_the_student_on_byte_for_byte(folder: Folder) -> None:
    result = folder.prune(enabled=False)
    same_model(folder, "prune.enabled is false: the student is handed on unchanged")
    assert result.gate is None


def same_model(folder: Folder, reason: str, student: str = "distill") -> None:
    """The student was handed on unchanged, marked as skipped with the reason."""
    before, after = content(folder.model(student)), content(folder.model("prune"))
    for name in (store.WEIGHTS, store.STRUCTURE):
        assert after[name] == before[name]
    status = store.read_status(folder.model("prune"))
    assert status["status"] == "skipped"
    assert reason in status["reason"]
    assert status["macs"] == store.read_status(folder.model(student))["macs"]
    assert read_history(folder.history("prune")).status == "skipped"
    assert read_json(folder.metrics("prune"))["macs_ratio"] == 1.0


def test_a_target_out_of_reach_fails_with_the_nearest_ratio(folder: Folder) -> None:
    result = folder.prune(macs_ratio=0.1, round_to=16)
    assert result.gate is not None
    assert "must fall to 0.10x" in result.gate
    module, spec = store.load(folder.model("distill"))
    floor = (192 * 16 + 16 * 16 + 16 * 4) / count(module, spec.input_shape).macs
    assert f"the nearest that can be reached is {floor:.3f}x" in result.gate
    assert "prune.on_miss: keep_best" in result.gate
    same_model(folder, "least width")


def test_keep_best_hands_on_the_nearest(folder: Folder) -> None:
    result = folder.prune(macs_ratio=0.1, round_to=16, on_miss="keep_best")
    assert result.gate is None
    assert read_json(folder.metrics("prune"))["macs_ratio"] < 0.6
    status = store.read_status(folder.model("prune"))
    assert status["status"] == "finished"
    assert "must fall to 0.10x" in status["reason"]
    assert status["reason"] in result.summary


@pytest.mark.parametrize(("on_miss", "fails"), [("fail", True), ("keep_best", False)])
def test_a_model_that_cannot_be_pruned_is_handed_on_with_the_reason(folder: Folder, on_miss: str, fails: bool) -> None:
    folder.distill(student=Model(name="tests.unit.compression.zoo:Recurrent"), max_drop=1.0)
    result = folder.prune(on_miss=on_miss)
    same_model(folder, "lstm is recurrent (LSTM)")
    assert (result.gate is not None) is fails
    assert "lstm is recurrent (LSTM)" in (result.gate or result.summary)


def test_layers_that_were_left_alone_are_named_in_the_status(folder: Folder) -> None:
    folder.distill(student=Model(name="tests.unit.compression.zoo:FusedAttention"), max_drop=1.0)
    result = folder.prune(macs_ratio=0.8, round_to=16, max_drop=1.0)
    reason = store.read_status(folder.model("prune"))["reason"]
    assert result.gate is None
    assert "left alone: qkv: pruned, the model no longer runs" in reason
    assert set(result.evidence["spared"]) == {"qkv"}


HOPELESS = Fit(epochs=2, batch_size=32, lr=1e-9)


def test_accuracy_below_the_bound_fails_with_figures(folder: Folder) -> None:
    result = folder.prune(macs_ratio=0.15, fit=HOPELESS, max_drop=0.0)
    assert result.gate is not None
    before = store.read_status(folder.model("distill"))["val_accuracy"]
    after = store.read_status(folder.model("prune"))["val_accuracy"]
    assert f"({before:.2%} -> {after:.2%})" in result.gate
    assert "prune.max_drop" in result.gate
    store.load(folder.model("prune"))


def test_keep_best_takes_the_smallest_within_the_bound(folder: Folder) -> None:
    # The first round takes little and stays within the bound; the second takes nearly all and cannot be mended.
    gentle = folder.prune(macs_ratio=0.15, fit=HOPELESS, max_drop=1.0, iterations=2)
    drops = [float(row) for row in read_history(folder.history("prune")).epochs.val_accuracy]
    before = store.read_status(folder.model("distill"))["val_accuracy"]
    first, last = before - drops[0], before - drops[-1]
    assert first < last, "the two rounds must differ for this test to mean anything"
    result = folder.prune(macs_ratio=0.15, fit=HOPELESS, max_drop=max(first, 0.0), iterations=2, on_miss="keep_best")
    assert gentle.gate is None
    assert result.gate is None
    ratio = read_json(folder.metrics("prune"))["macs_ratio"]
    assert 0.15 < ratio < 1.0
    assert f"kept the smallest model within prune.max_drop, {ratio:.2f}x" in result.summary


def test_keep_best_hands_the_unpruned_on_when_no_round_is_good(folder: Folder) -> None:
    result = folder.prune(macs_ratio=0.15, fit=HOPELESS, max_drop=0.0, iterations=1, on_miss="keep_best")
    assert result.gate is None
    same_model(folder, "no smaller model keeps prune.max_drop")


def test_soft_labels_are_used_where_distill_ran(folder: Folder) -> None:
    weights = []
    for alpha in (0.0, 0.9):
        folder.prune(alpha=alpha)
        weights.append((folder.model("prune") / store.WEIGHTS).read_bytes())
    assert weights[0] != weights[1]


def test_the_labels_alone_count_where_distill_was_skipped(folder: Folder) -> None:
    folder.distill(enabled=False)
    weights = []
    for alpha in (0.0, 0.9):
        folder.prune(alpha=alpha, macs_ratio=0.6)
        weights.append((folder.model("prune") / store.WEIGHTS).read_bytes())
    assert weights[0] == weights[1]


def test_a_fine_tuning_that_stops_itself_is_left_to_the_diagnosis(folder: Folder) -> None:
    result = folder.prune(fit=Fit(epochs=2, batch_size=32, optimizer="sgd", lr=1e30, clip_norm=None))
    assert result.gate is None
    assert "stopped itself" in result.summary
    assert store.read_status(folder.model("prune"))["status"] == "stopped"
    assert read_history(folder.history("prune")).status == "stopped"


def test_epochs_and_bounds_of_the_rounds() -> None:
    assert divide(8, 3) == [2, 3, 3]
    assert divide(2, 2) == [1, 1]
    assert sum(divide(17, 5)) == 17
    assert bounds(100, 40.0, 3) == pytest.approx([80.0, 60.0, 40.0])


def test_settings_that_would_have_no_effect_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"iterations must be at most fit\.epochs"):
        Prune(iterations=3, fit=Fit(epochs=2))
    with pytest.raises(ValidationError, match="temperature has no effect with alpha 0"):
        Prune(alpha=0.0, temperature=2.0)
    with pytest.raises(ValidationError, match="has no effect with alpha 1"):
        Prune(alpha=1.0, fit=Fit(label_smoothing=0.1))
