"""`main` around a stage: exit codes, nothing half-written, what `.shipway/last` says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Workspace

BODY = """
import errno, os, time
from dataclasses import dataclass
from pathlib import Path
from stages.config.base import StageParams
from stages.config.model import Model
from stages.runtime.exits import *
from stages.runtime.files import write_json
from stages.runtime.stage import Result, main

class Params(StageParams):
    model: Model

@dataclass(frozen=True)
class Inputs:
    data: Path = Path("artifacts/start/data")

@dataclass(frozen=True)
class Outputs:
    model: Path = Path("artifacts/probe/model")
    metrics: Path = Path("artifacts/probe/metrics.json")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    write_json(outputs.model / "value.json", params.model.name)
    {act}
    write_json(outputs.metrics, {{"one": 1}})
    return Result("all is well", {{"one": 1}}{more})

if __name__ == "__main__":
    main(run, "probe")
"""
GRAPH = """
stages:
  probe:
    cmd: python -m stages.probe
    deps: [artifacts/start/data, stages/probe.py, stages/runtime]
    params: [seed, threads, model]
    outs: [artifacts/probe/model]
"""


def ended(workspace: Workspace, act: str = "pass", more: str = "") -> tuple[int, dict[str, object], str]:
    """Runs a stage whose body does `act`; returns its exit code, last-file and output."""
    (workspace.root / "stages" / "probe.py").write_text(BODY.format(act=act, more=more))
    (workspace.root / "dvc.yaml").write_text(GRAPH)
    (workspace.root / "artifacts/start/data").mkdir(parents=True, exist_ok=True)
    done = workspace.python("-m", "stages.probe", check=False)
    last = workspace.root / ".shipway/last/probe.json"
    return done.returncode, json.loads(last.read_text()), done.stdout + done.stderr


def test_a_stage_that_works_moves_its_outputs_in_place(workspace: Workspace) -> None:
    code, last, said = ended(workspace)
    assert code == 0
    assert last["sentence"] == "all is well"
    assert "probe: all is well" in said
    made = workspace.root / "artifacts/probe"
    assert json.loads((made / "model/value.json").read_text()) == "resnet_cifar"
    identity = json.loads((made / "model/identity.json").read_text())
    assert identity["stage"] == "probe"
    assert identity["params"]["model"]["name"] == "resnet_cifar"
    assert not list((workspace.root / "artifacts").glob(".*"))
    assert len(list((workspace.root / ".shipway/runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("act", "code", "said"),
    [
        ("raise GateFailed('too bad: 3 > 2; lower train.lr')", 3, "probe: gate (exit 3): too bad: 3 > 2"),
        ("raise BadParams('no such model')", 64, "no such model"),
        ("raise BadData('no such file')", 65, "no such file"),
        ("raise OSError(errno.ENOSPC, 'No space left on device')", 74, "free space"),
        ("raise PermissionError(errno.EACCES, 'Permission denied', 'x')", 74, "permissions"),
        ("raise RuntimeError('write failed: No space left on device (28)')", 74, "free space"),
        (
            "raise SystemExit(0)",
            64,
            "your own code (factory, dataset, network) tried to end the process: SystemExit(0)",
        ),
        ("raise KeyboardInterrupt", 64, "KeyboardInterrupt"),
        ("raise KeyError('x')", 70, "a bug of Shipway, please report it: KeyError"),
        ("return Result('unfinished')", 70, "did not write artifacts/"),
    ],
)
def test_an_end_has_its_code_and_leaves_nothing(workspace: Workspace, act: str, code: int, said: str) -> None:
    found, last, printed = ended(workspace, act)
    assert found == code == last["code"]
    assert said in printed
    assert ("Traceback" in printed) == (act == "raise KeyError('x')")
    assert not (workspace.root / "artifacts/probe").exists()
    assert not list((workspace.root / "artifacts").glob(".*"))


def test_a_failed_gate_of_the_result_keeps_the_outputs(workspace: Workspace) -> None:
    code, last, _ = ended(workspace, more=", gate='p95 3.1 ms is above 2.0'")
    assert code == 3
    assert last["sentence"] == "p95 3.1 ms is above 2.0"
    assert (workspace.root / "artifacts/probe/model/value.json").exists()


def test_bad_parameters_stop_before_anything_is_touched(workspace: Workspace) -> None:
    ended(workspace)
    before = workspace.read("artifacts/probe/model/value.json")
    params = workspace.root / "params.yaml"
    params.write_text(params.read_text().replace("  lr: 0.003", "  lr: -1", 1) + "\nwrong: 1\n")
    code, last, said = ended(workspace)
    assert code == 64
    assert isinstance(last["evidence"], dict)
    assert len(last["evidence"]["problems"]) == 2
    assert "train.lr" in said
    assert "wrong: unknown key" in said
    assert workspace.read("artifacts/probe/model/value.json") == before


def test_a_missing_input_names_the_stage_that_makes_it(workspace: Workspace) -> None:
    (workspace.root / "artifacts").mkdir()
    (workspace.root / "stages" / "probe.py").write_text(BODY.format(act="pass", more=""))
    (workspace.root / "dvc.yaml").write_text(GRAPH)
    done = workspace.python("-m", "stages.probe", check=False)
    assert done.returncode == 65
    assert "shipway run start" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_with_75(workspace: Workspace, number: int) -> None:
    ended(workspace)
    (workspace.root / "stages" / "probe.py").write_text(BODY.format(act="time.sleep(60)", more=""))
    process = subprocess.Popen([sys.executable, "-m", "stages.probe"], cwd=workspace.root, env=workspace.env)
    _wait_for_working(workspace.root)
    process.send_signal(number)
    assert process.wait(timeout=30) == 75
    assert not list((workspace.root / "artifacts").glob(".*"))


def test_leftovers_of_killed_runs_are_removed_and_never_used(workspace: Workspace) -> None:
    """One has the id of the next run itself: the stage lays it down before `main` enters its work folder."""
    ended(workspace)
    artifacts = workspace.root / "artifacts"
    gone = subprocess.Popen(["true"])
    gone.wait()
    other = artifacts / f".other.{gone.pid}"
    alive = artifacts / f".probe.{os.getpid()}"
    for folder in (artifacts / f".probe.{gone.pid}", other, alive):
        (folder / "probe/model").mkdir(parents=True)
    code = BODY.format(act="pass", more="").replace(
        "    main(run",
        "    stale = Path(f'artifacts/.probe.{os.getpid()}/probe/model')\n"
        "    stale.mkdir(parents=True)\n    (stale / 'stale').touch()\n    main(run",
    )
    (workspace.root / "stages/probe.py").write_text(code)
    assert workspace.python("-m", "stages.probe").returncode == 0
    assert sorted(path.name for path in (artifacts / "probe/model").iterdir()) == ["identity.json", "value.json"]
    assert set(artifacts.glob(".*")) == {other, alive}


def test_a_stop_in_the_last_renames_leaves_no_mix(workspace: Workspace) -> None:
    """The stop comes between the two outputs, just after the first was moved."""
    code = BODY.format(act="pass", more="").replace(
        "    main(run",
        "    import signal\n    replace = Path.replace\n"
        "    def stopped(path, to):\n        replace(path, to)\n"
        "        if to == Outputs().model:\n            os.kill(os.getpid(), signal.SIGTERM)\n"
        "    Path.replace = stopped\n    main(run",
    )
    ended(workspace)
    shutil.rmtree(workspace.root / "artifacts/probe")
    (workspace.root / "stages/probe.py").write_text(code)
    assert workspace.python("-m", "stages.probe", check=False).returncode == 0
    assert {path.name for path in (workspace.root / "artifacts/probe").iterdir()} == {"model", "metrics.json"}


def test_a_stage_stops_when_its_supervisor_has_died(workspace: Workspace) -> None:
    ended(workspace)
    (workspace.root / "stages" / "probe.py").write_text(BODY.format(act="time.sleep(60)", more=""))
    supervisor = subprocess.Popen(["sleep", "60"])
    env = workspace.env | {"SHIPWAY_SUPERVISOR_PID": str(supervisor.pid)}
    process = subprocess.Popen([sys.executable, "-m", "stages.probe"], cwd=workspace.root, env=env)
    _wait_for_working(workspace.root)
    supervisor.kill()
    supervisor.wait()
    assert process.wait(timeout=30) == 75


def _wait_for_working(root: Path) -> None:
    deadline = time.monotonic() + 30
    while not list(root.glob("artifacts/.probe.*/probe/model/value.json")):
        assert time.monotonic() < deadline, "the stage did not start"
        time.sleep(0.05)


def test_without_git_the_record_says_so(workspace: Workspace) -> None:
    ended(workspace)
    subprocess.run(["rm", "-rf", ".git"], cwd=workspace.root, check=True)
    subprocess.run(["rm", "-rf", ".shipway/runs"], cwd=workspace.root, check=True)
    code, _, _ = ended(workspace)
    assert code == 0
    record = json.loads(next((workspace.root / ".shipway/runs").iterdir()).read_text())
    assert record["git"]["commit"] is None
    assert "no git repository" in record["git"]["why"]


def test_a_dirty_tree_and_a_detached_head_are_recorded(workspace: Workspace) -> None:
    workspace.git("checkout", "-q", "--detach")
    code, _, _ = ended(workspace)
    assert code == 0
    record = json.loads(next((workspace.root / ".shipway/runs").iterdir()).read_text())
    assert record["git"]["why"] == "detached HEAD"
    assert record["git"]["commit"] == workspace.git("rev-parse", "HEAD").strip()
    assert record["git"]["dirty"]  # dvc.yaml and stages/probe.py are not committed.
