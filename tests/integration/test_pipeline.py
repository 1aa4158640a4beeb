"""The whole pipeline as a user runs it: once, again, by force, at another commit, after a loss."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conftest import Workspace, make_workspace

pytestmark = pytest.mark.integration

OUTPUTS = [
    "artifacts/prepare_data/data",
    "artifacts/benchmark_data/done.json",
    "artifacts/find_batch_size/decision",
    "artifacts/train/model",
    "artifacts/train/history",
    "artifacts/diagnose/train",
    "artifacts/distill/model",
    "artifacts/prune/model",
    "artifacts/export_onnx/model",
    "artifacts/quantize/model",
    "artifacts/profile_model/targets",
    "artifacts/bundle",
]


def metrics(workspace: Workspace) -> dict[str, Any]:
    """The variants' deterministic metrics."""
    variants: dict[str, Any] = json.loads(workspace.read("artifacts/profile_model/metrics.json"))["variants"]
    return variants


def contents(path: Path) -> dict[str, bytes]:
    """All files below a path with their bytes."""
    files = [path] if path.is_file() else sorted(child for child in path.rglob("*") if child.is_file())
    return {file.relative_to(path.parent).as_posix(): file.read_bytes() for file in files}


def test_the_first_run_gives_what_the_readme_promises(finished: Workspace) -> None:
    variants = metrics(finished)
    assert next(iter(variants)) == "teacher"
    assert variants["teacher"]["accuracy"] >= 0.97
    final = variants["final"]
    assert final["accuracy"] >= variants["teacher"]["accuracy"] - 0.01
    assert variants["teacher"]["size_bytes"] >= 4 * final["size_bytes"]
    bundle = {path.name for path in (finished.root / "artifacts/bundle").iterdir()}
    assert {"model.onnx", "labels.json", "predict.py", "manifest.json", "README.md"} <= bundle
    assert (finished.root / "artifacts/report.html").is_file()


def test_a_second_run_has_nothing_to_do_and_still_shows_the_table(finished: Workspace) -> None:
    before = finished.read("dvc.lock")
    said = finished.shipway("run").stdout
    assert "nothing to do" in said
    assert "teacher" in said
    assert finished.read("dvc.lock") == before
    assert finished.git("status", "--porcelain") == ""


def test_the_whole_graph_is_clean_in_dvc_s_eyes(finished: Workspace) -> None:
    assert json.loads(finished.dvc("status", "--json").stdout) == {}


def test_lost_artifacts_come_back_byte_for_byte(copied: Workspace) -> None:
    before = {output: contents(copied.root / output) for output in OUTPUTS}
    for path in (copied.root / output for output in OUTPUTS):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    copied.dvc("checkout", *OUTPUTS[1:])
    copied.dvc("repro", "prepare_data")  # The stage has run so before; DVC brings its output, too.
    assert {output: contents(copied.root / output) for output in OUTPUTS} == before


def test_another_commit_with_the_same_code_changes_nothing(copied: Workspace) -> None:
    before = copied.read("dvc.lock")
    (copied.root / "NOTES.md").write_text("a note\n")
    copied.git("add", "NOTES.md")
    copied.git("commit", "-q", "-m", "a note")
    copied.dvc("repro", "--force", "prepare_data")
    copied.dvc("repro", "--force", "--single-item", "diagnose@train")
    assert copied.read("dvc.lock") == before


def test_a_forced_run_of_everything_gives_the_same_lock(copied: Workspace) -> None:
    """Without checkpoints and records of the first run: everything is really made again."""
    before = copied.read("dvc.lock")
    shutil.rmtree(copied.root / ".shipway/checkpoints")
    shutil.rmtree(copied.root / ".shipway/runs")
    copied.dvc("repro", "--force")
    assert copied.read("dvc.lock") == before
    assert copied.git("status", "--porcelain", "--", "dvc.lock", "artifacts/*/metrics.json") == ""


def test_the_flow_ends_in_the_same_lock(copied: Workspace) -> None:
    before = copied.read("dvc.lock")
    (copied.root / "dvc.lock").unlink()  # All is stale; DVC's run cache brings the results, stage by stage.
    said = copied.shipway("run", "--prefect").stdout
    assert copied.read("dvc.lock") == before
    assert "127.0.0.1" in said


def test_artifacts_name_no_commit_time_host_or_folder(finished: Workspace) -> None:
    commit = finished.git("rev-parse", "HEAD~1").strip()
    for output in OUTPUTS:
        for name, content in contents(finished.root / output).items():
            assert commit.encode() not in content, name
            assert b"a path with a space" not in content, name
            assert not re.search(rb"\b20[2-9]\d-\d\d-\d\dT\d\d:\d\d", content), name


def test_dvc_s_own_commands_work(copied: Workspace) -> None:
    shown = json.loads(copied.dvc("metrics", "show", "--json").stdout)[""]["data"]
    assert "artifacts/profile_model/metrics.json" in shown
    assert "artifacts/profile_model/measured.json" in shown
    plots = json.loads(copied.dvc("plots", "show", "--json", "-o", "plots").stdout or "{}")
    assert not plots.get("errors")
    names = " ".join(plots.get("data", plots))
    for wanted in ("train loss", "confusion", "measured.csv"):
        assert wanted in names
    copied.shipway("run", "prepare_data", "--set", "train.lr=0.002")
    diff = json.loads(copied.dvc("params", "diff", "--json").stdout)
    assert (diff["params.yaml"]["train.lr"]["old"], diff["params.yaml"]["train.lr"]["new"]) == (0.003, 0.002)


def test_an_experiment_runs_with_a_changed_parameter(copied: Workspace) -> None:
    copied.dvc("exp", "run", "-S", "quantize.max_drop=0.02", "quantize")
    assert YAML(typ="safe").load(copied.read("params.yaml"))["quantize"]["max_drop"] == 0.02
    assert json.loads(copied.read("artifacts/quantize/model/decision.json"))["bounds"]["max_drop"] == 0.02


def test_int8_can_be_asked_for_and_is_small(copied: Workspace) -> None:
    """Whatever this processor makes of INT8's speed: forced, it keeps the accuracy and is a fraction of the size."""
    copied.shipway("run", "--set", "quantize.fixed=int8")
    variants = metrics(copied)
    assert variants["final"]["number_type"] == "int8"
    assert variants["final"]["accuracy"] >= variants["teacher"]["accuracy"] - 0.01
    assert variants["teacher"]["size_bytes"] >= 10 * variants["final"]["size_bytes"]
    copied.shipway("verify", "artifacts/bundle")


def test_a_bundle_that_is_not_up_to_date_is_released_only_when_asked(copied: Workspace, tmp_path: Path) -> None:
    params = copied.root / "params.yaml"
    params.write_text(params.read_text().replace("min_speedup: 1.1", "min_speedup: 1.2"))
    refused = copied.shipway("release", str(tmp_path / "models"), check=False)
    assert refused.returncode == 64
    assert "artifacts/bundle is not up to date (quantize and 2 more would run)" in refused.stderr
    assert not (tmp_path / "models").exists()
    copied.shipway("release", "--stale", str(tmp_path / "models"))
    assert (tmp_path / "models").is_dir()


def test_release_takes_the_record_along_and_predict_reads_it(copied: Workspace, tmp_path: Path) -> None:
    copied.shipway("release", str(tmp_path / "models"))
    (released,) = [path for path in (tmp_path / "models").iterdir() if path.is_dir()]
    assert released.with_name(f"{released.name}.record.json").is_file()
    said = copied.shipway("predict", str(released), str(released / "samples.npy")).stdout
    assert len(said.splitlines()) >= 8


def test_a_damaged_bundle_in_production_stands_in_nobody_s_way(finished: Workspace, tmp_path: Path) -> None:
    shutil.copytree(finished.root / "artifacts/bundle", tmp_path / "damaged")
    (tmp_path / "damaged/stray").symlink_to("nowhere")
    bundles = ["candidate=artifacts/bundle", f"production={tmp_path / 'damaged'}"]
    rows = json.loads(finished.python("-m", "stages.deployment", "compare", *bundles).stdout)
    assert rows["candidate"]["accuracy"] > 0.9
    assert rows["production"]["digest"] is None
    assert rows["production"]["why"].startswith("it is damaged: ")


def test_a_schema_of_a_later_stage_does_not_retrain(copied: Workspace) -> None:
    schema = copied.root / "stages/config/quantize.py"
    schema.write_text(schema.read_text() + "\n# a comment\n")
    stale = json.loads(copied.dvc("status", "--json").stdout)
    assert "quantize" in stale
    assert not {"prepare_data", "train", "distill", "prune", "export_onnx"} & set(stale)


def test_an_archive_without_git_runs_and_says_so(finished: Workspace, tmp_path: Path) -> None:
    archive = make_workspace(tmp_path, git=False)
    archive.shipway("run", "prepare_data")
    shown = archive.shipway("show", "artifacts/prepare_data/data", check=False).stdout
    assert "no git" in shown
