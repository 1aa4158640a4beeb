"""Stage `profile_model`: scores of saved files, repeatable metrics, stamped measurements, targets as gates."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.config.profile_model import ProfileModel
from stages.config.targets import Targets
from stages.data.prepared import Prepared
from stages.deployment import evaluation
from stages.deployment.evaluation import Scores
from stages.deployment.latency import Latency, latency
from stages.profile_model import Inputs, Outputs, Params, run
from stages.runtime import measured
from stages.runtime.exits import BadData
from stages.runtime.files import sha256_file, write_json
from stages.runtime.stage import Result
from tests.unit.deployment.build import conv_net, embed

MEASURED = Path("artifacts/profile_model/measured.json")


@pytest.fixture
def inputs(images: Path, tmp_path: Path) -> Inputs:
    prepared = Prepared.open(images)
    exported, final = tmp_path / "exported", tmp_path / "final"
    embed(conv_net(prepared, (16, 32)), exported / "teacher.onnx")
    embed(conv_net(prepared, (4, 8)), exported / "model.onnx")
    embed(conv_net(prepared, (4, 8)), final / "model.onnx")
    rows = [
        {"name": "teacher", "file": "teacher.onnx", "params": 500, "macs": 9000, "skipped": None},
        {"name": "student", "file": "teacher.onnx", "params": 500, "macs": 9000, "skipped": "distill.enabled is false"},
        {"name": "pruned", "file": "model.onnx", "params": 50, "macs": 900, "skipped": None},
    ]
    write_json(exported / "variants.json", rows)
    write_json(final / "decision.json", {"chosen": "float", "reason": "a test"})
    return Inputs(images, exported, final)


def profile(inputs: Inputs, folder: Path, **targets: Any) -> tuple[Result, Outputs]:
    outputs = Outputs(folder / "targets", folder / "confusion.csv", folder / "metrics.json")
    outputs.targets.mkdir(parents=True)
    settings = ProfileModel(repeats=20, warmup=2, throughput_repeats=5)
    return run(Params(seed=0, threads=1, profile_model=settings, targets=Targets(**targets)), inputs, outputs), outputs


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_table_starts_with_the_teacher_and_ends_with_the_final_model(inputs: Inputs, tmp_path: Path) -> None:
    result, outputs = profile(inputs, tmp_path / "out")
    variants = json.loads(outputs.metrics.read_text())["variants"]
    assert list(variants) == ["teacher", "pruned", "final"]
    assert variants["teacher"]["size_bytes"] == (inputs.exported / "teacher.onnx").stat().st_size
    assert (variants["final"]["params"], variants["final"]["macs"]) == (50, 900)
    prepared = Prepared.open(inputs.data)
    assert variants["final"]["accuracy"] == evaluation.score(inputs.final / "model.onnx", prepared, "test", 1).accuracy
    assert result.gate is None
    assert "no targets are set" in result.summary


def test_artifacts_repeat_byte_for_byte_and_measurements_are_stamped(inputs: Inputs, tmp_path: Path) -> None:
    _, first = profile(inputs, tmp_path / "one", max_p95_latency_ms=1e6)
    _, second = profile(inputs, tmp_path / "two", max_p95_latency_ms=1e6)
    for one, two in [(first.metrics, second.metrics), (first.confusion, second.confusion)]:
        assert one.read_bytes() == two.read_bytes()
    assert (first.targets / "targets.json").read_bytes() == (second.targets / "targets.json").read_bytes()
    taken = measured.read(MEASURED, of=sha256_file(inputs.final / "model.onnx"))
    assert taken is not None
    assert taken["variants"]["teacher"]["p50_ms"] > 0
    assert measured.read(MEASURED, of="another") is None
    rows = read_csv(MEASURED.with_suffix(".csv"))
    assert [row["variant"] for row in rows] == ["teacher", "pruned", "final"]
    assert {row["measured_digest"] for row in rows} == {taken["measured_digest"]}


def test_the_confusion_plot_has_a_row_per_test_sample(inputs: Inputs, tmp_path: Path) -> None:
    _, outputs = profile(inputs, tmp_path / "out")
    rows = read_csv(outputs.confusion)
    prepared = Prepared.open(inputs.data)
    labels = prepared.labels[prepared.indices("test")]
    assert [row["actual"] for row in rows] == [prepared.info.classes[label] for label in labels]
    right = np.mean([row["actual"] == row["predicted"] for row in rows])
    assert right == json.loads(outputs.metrics.read_text())["variants"]["final"]["accuracy"]


def test_all_missed_targets_fail_the_gate_and_the_outputs_stay(inputs: Inputs, tmp_path: Path) -> None:
    result, outputs = profile(inputs, tmp_path / "out", min_accuracy=0.1, max_size_kib=0.001, max_p95_latency_ms=1e-6)
    assert result.gate is not None
    assert "max_size_kib" in result.gate
    assert "max_p95_latency_ms" in result.gate
    assert "min_accuracy" not in result.gate
    written = json.loads((outputs.targets / "targets.json").read_text())
    assert written["all_hold"] is False
    by_name = {row["name"]: row for row in written["targets"]}
    assert by_name["min_accuracy"]["holds"] is True
    assert "got" not in by_name["max_p95_latency_ms"]


def test_damaged_inputs_are_one_clear_error(inputs: Inputs, tmp_path: Path) -> None:
    (inputs.exported / "variants.json").write_text("[]")
    with pytest.raises(BadData, match="run export_onnx and quantize again"):
        profile(inputs, tmp_path / "out")


def test_scores_against_hand_counted_ones() -> None:
    scores = Scores(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0]), classes=4)
    assert scores.accuracy == pytest.approx(0.6)
    assert scores.confusion.tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert scores.macro_f1 == pytest.approx((0.5 + 0.8 + 0.0) / 3)


def test_latency_gives_the_runs_that_were_asked_for(inputs: Inputs) -> None:
    raw = Prepared.open(inputs.data).read([0])
    paths = {"small": inputs.final / "model.onnx", "large": inputs.exported / "teacher.onnx"}
    taken = latency(paths, raw, threads=1, repeats=45, warmup=1)
    assert set(taken) == {"small", "large"}
    assert all(len(found.runs_ms) == 45 for found in taken.values())
    assert all(0 < found.p50_ms <= found.p95_ms for found in taken.values())


def test_a_comparison_is_made_inside_the_rounds() -> None:
    """A machine that is slow for a while slows both models of a round; medians over all runs would mix the states."""
    fast, slow = np.full(3, 1.0), np.full(3, 10.0)
    ours = Latency((fast, slow, slow))
    theirs = Latency((2 * fast, 2 * slow, 2 * fast))
    assert ours.speedup_over(theirs) == pytest.approx(2.0)
