"""The stage as a process: what it leaves, that it repeats, resumes, reuses, and how its ends look."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.checkpoints.files import describe
from stages.config.editing import edit
from stages.models import store
from tests.conftest import Workspace, make_workspace

EDITS = {
    "threads": 1,
    "model": {"name": "mlp", "kwargs": {"hidden": [32]}},
    "train.epochs": 4,
    "train.batch_size": 64,
    "find_batch_size.memory_budget_mib": None,
    "find_batch_size.fixed_micro_batch": 32,
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Digits prepared, a small network, the micro-batch fixed; trained once."""
    made = make_workspace(tmp_path_factory.mktemp("train"))
    edit(EDITS, made.root / "params.yaml")
    made.python("-m", "stages.prepare_data")
    made.python("-m", "stages.find_batch_size")
    done = made.root / "artifacts/benchmark_data/done.json"
    done.parent.mkdir(parents=True)
    done.write_text("{}")
    made.python("-W", "error", "-m", "stages.train")
    return made


def outputs(of: Workspace) -> dict[str, bytes]:
    folder = of.root / "artifacts/train"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoints(of: Workspace) -> Path:
    return of.root / ".shipway/checkpoints"


def test_what_it_leaves(ready: Workspace) -> None:
    left = outputs(ready)
    assert set(left) == {
        "metrics.json", "model/weights.safetensors", "model/structure.json", "model/status.json", "model/identity.json",
        "history/meta.json", "history/steps.jsonl", "history/epochs.jsonl", "history/layers.jsonl",
        "history/events.jsonl", "history/curves.csv", "history/identity.json",
    }  # fmt: skip
    metrics = json.loads(left["metrics.json"])
    assert set(metrics) == {
        "val_accuracy", "val_loss", "val_macro_f1", "train_accuracy", "train_loss", "train_macro_f1", "params", "macs",
        "best_epoch",
    }  # fmt: skip
    assert metrics["val_accuracy"] > 0.8
    assert json.loads(left["model/status.json"])["val_accuracy"] == pytest.approx(metrics["val_accuracy"])
    module, spec = store.load(ready.root / "artifacts/train/model")
    assert (spec.name, spec.input_shape, spec.classes) == ("mlp", (8, 8, 1), 10)
    assert sum(p.numel() for p in module.parameters()) == metrics["params"]
    text = b"".join(left.values()).decode("utf-8", errors="ignore")
    assert str(ready.root) not in text


def test_the_record_tells_the_lineage(ready: Workspace) -> None:
    records = [json.loads(path.read_text()) for path in (ready.root / ".shipway/runs").iterdir()]
    [record] = [r for r in records if r["path"].endswith("weights.safetensors")]
    [segment] = record["result"]["lineage"]
    assert segment["commit"] == ready.git("rev-parse", "HEAD").strip()
    assert (segment["from_step"], segment["to_step"]) == (0, 4 * -(-1237 // 64))


def test_a_checkpoint_tells_what_it_is(ready: Workspace) -> None:
    newest = max(checkpoints(ready).rglob("*.pt"))
    told = describe(newest)
    assert told["stage"] == "train"
    assert told["params"]["train"]["epochs"] == 4
    assert told["params"]["model"]["name"] == "mlp"
    assert "log_every_steps" not in told["params"]["train"]
    assert told["status"] == "finished"
    assert told["best"]["val"]["accuracy"] > 0.8
    timings = [json.loads(line) for line in (newest.parent / "epoch_timings.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in timings] == [1, 2, 3, 4]
    assert all(row["samples_per_s"] > 0 for row in timings)


def test_finished_is_reused(ready: Workspace) -> None:
    before = outputs(ready)
    again = ready.python("-m", "stages.train")
    assert "this very training ended before" in again.stdout
    assert "epoch 1 of 4" not in again.stdout
    assert outputs(ready) == before


def test_stopped_by_sigterm_and_resumed_it_is_the_same_to_the_byte(ready: Workspace) -> None:
    before = outputs(ready)
    env = ready.env | {"SHIPWAY_STATE": str(ready.root / "stopped")}
    command = [sys.executable, "-m", "stages.train"]
    with subprocess.Popen(command, cwd=ready.root, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "epoch 1 of 4" in line:
                break
        process.terminate()
        said = process.stdout.read()
        assert process.wait(60) == 75
    assert "run again to go on" in said
    assert json.loads((ready.root / ".shipway/last/train.json").read_text())["code"] == 75
    assert not list((ready.root / "artifacts").glob(".train*"))
    resumed = ready.python("-m", "stages.train", SHIPWAY_STATE=env["SHIPWAY_STATE"])
    assert "goes on after step" in resumed.stdout
    assert outputs(ready) == before


def test_an_edit_of_the_training_code_starts_again(ready: Workspace) -> None:
    edited = ready.root / "stages/training/schedule.py"
    text = edited.read_text()
    newest = max(checkpoints(ready).rglob("*.json"), key=lambda p: p.stat().st_mtime)
    try:
        edited.write_text(text + "\n# edited\n")
        again = ready.python("-m", "stages.train")
        assert "epoch 1 of 4" in again.stdout
    finally:
        edited.write_text(text)
    assert newest.exists()


def edit_params(old: str, new: str) -> Callable[[Workspace], None]:
    def apply(of: Workspace) -> None:
        path = of.root / "params.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return apply


def break_decision(of: Workspace) -> None:
    (of.root / "artifacts/find_batch_size/decision/decision.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (edit_params("name: mlp", "name: mpl"), 64, "did you mean 'mlp'"),
        (break_decision, 65, "run `shipway run find_batch_size` again"),
    ],
)
def test_mistakes_are_one_sentence(ready: Workspace, change: Callable[[Workspace], None], code: int, said: str) -> None:
    kept = {path: path.read_bytes() for path in (ready.root / "params.yaml", decision(ready))}
    before = outputs(ready)
    try:
        change(ready)
        done = ready.python("-m", "stages.train", check=False)
    finally:
        for path, content in kept.items():
            path.write_bytes(content)
    assert done.returncode == code
    assert said in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert outputs(ready) == before


def decision(of: Workspace) -> Path:
    return of.root / "artifacts/find_batch_size/decision/decision.json"
