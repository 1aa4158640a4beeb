"""Two processes (gloo) on one training: real processes, real kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.data.prepared import Prepared
from stages.training.fit import fit
from stages.training.ranks import Ranks
from stages.training.windows import window_sizes
from tests.conftest import ROOT
from tests.unit.training import ranked, toy


def start(folder: Path, kind: str) -> list["subprocess.Popen[str]"]:
    (folder / f"meeting-{kind}").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.unit.training.ranked", str(folder)]
    env = os.environ | {"SHIPWAY_STATE": str(folder / "state")}
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen([*command, str(rank), "2", kind], cwd=ROOT, env=env, **out) for rank in (0, 1)]


def ended(processes: list["subprocess.Popen[str]"]) -> tuple[list[int], list[str]]:
    said = [process.communicate(timeout=120)[0] for process in processes]
    return [process.returncode for process in processes], said


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in (0, 1)]


def together(folder: Path, kind: str = "plain") -> list[dict[str, Any]]:
    codes, said = ended(start(folder, kind))
    assert codes == [0, 0], said
    return results(folder)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What both ranks of an unbroken training end in."""
    folder = tmp_path_factory.mktemp("unbroken")
    toy.prepare(folder / "data")
    first, second = together(folder)
    assert first == second
    return first


def alone(folder: Path) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    job = toy.job(folder / "alone", Prepared.open(folder / "data"), ranked.network())
    fit(job)
    rows = [json.loads(line) for line in (job.history / "steps.jsonl").read_text().splitlines()]
    return list(job.module.state_dict().values()), rows


def test_parts_of_a_window_hold_each_sample_once() -> None:
    for size in (1, 2, 3, 5):
        for samples in range(12):
            parts = [list(range(samples))[Ranks(rank, size).part(samples)] for rank in range(size)]
            assert [one for part in parts for one in part] == list(range(samples))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_two_ranks_agree_and_differ_from_one_by_rounding(
    tmp_path: Path, prepared: Prepared, unbroken: dict[str, Any]
) -> None:
    assert prepared.folder == tmp_path / "data"
    _, expected = alone(tmp_path)
    rows = [json.loads(line) for line in unbroken["steps.jsonl"].splitlines()]
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert row["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        assert row["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-3)
    epochs = [json.loads(line) for line in unbroken["epochs.jsonl"].splitlines()]
    assert sum(map(sum, epochs[0]["train_confusion"])) == 46


def test_one_rank_without_memory_makes_both_take_less(tmp_path: Path, prepared: Prepared) -> None:
    assert prepared.folder == tmp_path / "data"
    first, second = together(tmp_path, "short")
    assert first == second
    assert (first["micro_batch"], first["accuracy"]) == (2, second["accuracy"])
    (event,) = [json.loads(line) for line in first["events.jsonl"].splitlines()]
    assert (event["kind"], event["step"], len(event["samples"])) == ("out_of_memory", 1, 8)
    _, expected = alone(tmp_path)
    rows = [json.loads(line) for line in first["steps.jsonl"].splitlines()]
    assert rows[-1]["loss"] == pytest.approx(expected[-1]["loss"], rel=1e-3)


def test_killed_ranks_go_on_together_and_end_in_the_same(
    tmp_path: Path, prepared: Prepared, unbroken: dict[str, Any]
) -> None:
    assert prepared.folder == tmp_path / "data"
    processes = start(tmp_path, "slow")
    saved = tmp_path / "state"
    deadline = time.monotonic() + 120
    while len(list(saved.glob("checkpoints/*/*/*/step-*.json"))) < 4:  # Both have ended their first epoch.
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(processes[1].pid, signal.SIGKILL)
    codes, said = ended(processes)
    assert codes == [75, -9], said
    assert "another process of this training is gone" in said[0]
    without_the_newest_in_common(saved)
    first, second = together(tmp_path, "slow")
    assert first == second == unbroken


def test_ranks_that_saved_on_two_sides_of_a_validation_go_on_together(
    tmp_path: Path, prepared: Prepared, unbroken: dict[str, Any]
) -> None:
    """Both checkpoints are of the same step: one rank would validate, and wait for ever for the other one."""
    steps = len(window_sizes(len(prepared.indices("train")), 8))
    codes, said = ended(start(tmp_path, "last"))
    assert codes == [75, 75], said
    assert all(f"stopped on request after step {steps} of" in one for one in said), said
    seals = list((tmp_path / "state").glob(f"checkpoints/*/*/*/step-{steps:09d}.json"))
    before = {path: path.read_bytes() for seal in seals for path in (seal, seal.with_suffix(".pt"))}
    assert len(before) == 4
    processes = start(tmp_path, "slow")
    deadline = time.monotonic() + 120
    while any(not seal.is_file() or seal.read_bytes() == before[seal] for seal in seals):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for process in processes:
        process.kill()
    ended(processes)
    for path in (seals[0], seals[0].with_suffix(".pt")):
        path.write_bytes(before[path])
    first, second = together(tmp_path)
    assert first == second == unbroken


def without_the_newest_in_common(state: Path) -> None:
    """As where one rank's newest checkpoint was not due, and the other one has dropped it for a newer one."""
    folders = {path.parent for path in state.rglob("history")}
    first, second = ({path.stem: path for path in folder.glob("step-*.pt")} for folder in folders)
    newest = max(first.keys() & second.keys())
    for suffix in (".json", ".pt"):
        first[newest].with_suffix(suffix).unlink()
    assert first.keys() & second.keys() > {newest}


def test_a_stop_in_the_validation_of_one_rank_saves_both(tmp_path: Path, prepared: Prepared) -> None:
    assert prepared.folder == tmp_path / "data"
    codes, said = ended(start(tmp_path, "stopped"))
    assert codes == [75, 75], said
    steps = len(window_sizes(len(prepared.indices("train")), 8))
    assert all(f"stopped on request after step {steps} of" in one for one in said), said


def test_ranks_that_were_given_different_trainings_are_refused(tmp_path: Path, prepared: Prepared) -> None:
    assert prepared.folder == tmp_path / "data"
    codes, said = ended(start(tmp_path, "differs"))
    assert codes == [64, 64], said
    assert all("must be given the same settings, seed, data, code and starting weights" in one for one in said)


def test_a_rank_that_hangs_is_waited_for_until_the_deadline(tmp_path: Path, prepared: Prepared) -> None:
    assert prepared.folder == tmp_path / "data"
    processes = start(tmp_path, "hangs")
    code = processes[0].wait(timeout=120)
    processes[1].kill()
    _, said = ended(processes)
    assert code == 75, said
    assert "does not answer" in said[0]
