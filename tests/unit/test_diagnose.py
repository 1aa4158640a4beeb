"""The gate as a real process, in a workspace of its own."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Workspace
from tests.unit.diagnosis.build import CHANCE, Run, flat, rises, write

GUESSING = Run(
    loss=rises(CHANCE, 40),
    val_loss=rises(CHANCE, 60),
    accuracy=flat(0.1),
    val_accuracy=flat(0.1),
    epochs=6,
    per_epoch=10,
)
"""A run that diverged."""


def diagnosed(workspace: Workspace, stage: str = "train") -> tuple[int, str, dict[str, object]]:
    done = workspace.python("-m", "stages.diagnose", stage, check=False)
    assert "Traceback" not in done.stderr
    last = json.loads(workspace.read(f".shipway/last/diagnose@{stage}.json"))
    return done.returncode, done.stdout, last


def test_a_healthy_run_passes_and_leaves_the_same_bytes_twice(workspace: Workspace) -> None:
    write(workspace.root / "artifacts/train/history", Run(epochs=6, per_epoch=10).history(0))
    code, said, _ = diagnosed(workspace)
    assert code == 0
    assert "diagnose@train: healthy: train loss" in said
    first = workspace.read("artifacts/diagnose/train/verdict.json")
    shutil.rmtree(workspace.root / "artifacts/diagnose")
    diagnosed(workspace)
    assert workspace.read("artifacts/diagnose/train/verdict.json") == first
    assert json.loads(first)["verdict"] == "healthy"


def test_a_gate_that_fails_says_why_and_keeps_the_verdict(workspace: Workspace) -> None:
    write(workspace.root / "artifacts/distill/history", GUESSING.history(0))
    code, said, last = diagnosed(workspace, "distill")
    assert code == 3
    assert "gate (exit 3): " in said
    assert "distill.fit.lr: 0.05 -> 0.005" in said
    assert last["code"] == 3
    verdict = json.loads(workspace.read("artifacts/diagnose/distill/verdict.json"))
    assert (verdict["verdict"], verdict["passed"]) == ("diverged", False)


def test_fail_on_decides(workspace: Workspace) -> None:
    write(workspace.root / "artifacts/train/history", GUESSING.history(0))
    params = workspace.root / "params.yaml"
    text = params.read_text()
    (line,) = [line for line in text.splitlines() if "fail_on" in line]
    params.write_text(text.replace(line, "  fail_on: [nan]"))
    code, said, _ = diagnosed(workspace)
    assert (code, "passes with a warning" in said) == (0, True)


@pytest.mark.parametrize(("file", "text"), [("steps.jsonl", ""), ("meta.json", "{")])
def test_a_broken_history_is_bad_data(workspace: Workspace, file: str, text: str) -> None:
    folder = write(workspace.root / "artifacts/train/history", Run(epochs=4, per_epoch=5).history(0))
    (folder / file).write_text(text)
    code, said, _ = diagnosed(workspace)
    assert code == 65
    assert len(said.strip().splitlines()) == 1
    assert not Path(workspace.root / "artifacts/diagnose/train").exists()
