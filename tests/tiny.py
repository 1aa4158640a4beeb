"""A small pipeline of its own for the tests of the flows: real DVC, seconds instead of minutes."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from stages.config.editing import edit
from tests.conftest import Workspace

_PIPELINE = """\
stages:
  first:
    cmd: python -m stages.first
    deps: [stages/first.py, raw.txt]
    params: [seed, threads, train.lr]
    outs: [artifacts/first/data]
    metrics:
      - artifacts/first/metrics.json: {cache: false}
  second:
    foreach: [a, b]
    do:
      cmd: python -m stages.second ${item}
      deps: [stages/second.py, artifacts/first/data]
      params: [seed, threads]
      outs: ["artifacts/second/${item}"]
  third:
    cmd: python -m stages.third
    deps: [stages/third.py, artifacts/second/a, artifacts/second/b]
    params: [seed, threads]
    outs: [artifacts/third]
"""

_FIRST = '''\
"""Writes the raw text and the learning rate."""
import json
from dataclasses import dataclass
from pathlib import Path
from stages.config.base import StageParams, key
from stages.runtime.stage import Result, main

class Params(StageParams):
    lr: float = key("train.lr")

@dataclass(frozen=True)
class Inputs:
    raw: Path = Path("raw.txt")

@dataclass(frozen=True)
class Outputs:
    data: Path = Path("artifacts/first/data")
    metrics: Path = Path("artifacts/first/metrics.json")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    (outputs.data / "lr.txt").write_text(f"{inputs.raw.read_text()} {params.lr}")
    outputs.metrics.write_text(json.dumps({"lr": params.lr}))
    return Result(f"lr is {params.lr}")

if __name__ == "__main__":
    main(run, "first")
'''

# TINY_END, or the content of the file that TINY_END_FILE names, decides how `second@b` ends: by an exception's name,
# "crash", "exit1", "kill", "sleep", or "wait" (for the file `go`; then it ends well).
_SECOND = '''\
"""Copies; or ends as the environment says."""
import os, signal, sys, time
from dataclasses import dataclass
from pathlib import Path
from stages.config.base import StageParams
from stages.runtime import exits, stopping
from stages.runtime.stage import Result, main

class Params(StageParams):
    pass

@dataclass(frozen=True)
class Inputs:
    data: Path = Path("artifacts/first/data")

@dataclass(frozen=True)
class Outputs:
    copy: Path = Path("artifacts/second/{instance}")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    end = os.environ.get("TINY_END", "")
    if "TINY_END_FILE" in os.environ:
        end = Path(os.environ["TINY_END_FILE"]).read_text()
    if sys.argv[1] != "b":
        end = ""
    if end == "crash":
        raise RuntimeError("unforeseen")
    if end == "exit1":
        os._exit(1)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "sleep":
        with stopping.polled():
            print("sleeping", flush=True)
            Path("sleeping.pid").write_text(str(os.getpid()))
            while not stopping.requested():
                time.sleep(0.05)
        Path("saved.txt").write_text("saved")
        raise exits.Stopped("stopped on request; the checkpoint is saved")
    if end == "wait":
        with Path("trained.txt").open("a") as file:
            file.write("once")
        Path("sleeping.pid").write_text(str(os.getpid()))
        while not Path("go").exists():
            time.sleep(0.05)
    elif end:
        raise getattr(exits, end)(f"the sentence of {end}", {"bound": 3})
    (outputs.copy / "copy.txt").write_text((inputs.data / "lr.txt").read_text())
    return Result(f"copied to {sys.argv[1]}; a terminal: {sys.stderr.isatty()}")

if __name__ == "__main__":
    main(run, "second")
'''

_THIRD = '''\
"""Joins."""
from dataclasses import dataclass
from pathlib import Path
from stages.config.base import StageParams
from stages.runtime.stage import Result, main

class Params(StageParams):
    pass

@dataclass(frozen=True)
class Inputs:
    a: Path = Path("artifacts/second/a")
    b: Path = Path("artifacts/second/b")

@dataclass(frozen=True)
class Outputs:
    joined: Path = Path("artifacts/third")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    (outputs.joined / "joined.txt").write_text(
        (inputs.a / "copy.txt").read_text() + (inputs.b / "copy.txt").read_text()
    )
    return Result("joined")

if __name__ == "__main__":
    main(run, "third")
'''

KNOWN = {"seed": 0, "train.epochs": 15, "train.lr": 0.003, "model.kwargs": {"depth": 14, "width": 32}}
"""What the tests count on in params.yaml, whatever the shipped values are."""

_REPORTING = '''\
"""The small pipeline's own report."""
import json, os, signal, sys
from pathlib import Path
if sys.argv[1] == "restore":
    sections = {"train.lr": 0.003, "model": {"name": "resnet_cifar", "kwargs": {"depth": 14, "width": 32}}}
    print(json.dumps({"sections": sections, "commit": "0123abc", "dirty": None}))
elif sys.argv[1] == "show":
    print(f"arguments: {sys.argv[2:]}")
    if sys.argv[-1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "stage":
    print(json.dumps({"table": [{"name": "lr", "value": 1}], "markdown": f"what {sys.argv[2]} says", "svg": None}))
else:
    Path("artifacts/report.html").write_text("<p>report</p>")
    print("THE TABLE")
'''


def make_tiny(root: Path) -> None:
    """Replaces the pipeline of a copied project by the small one."""
    (root / "dvc.yaml").write_text(_PIPELINE)
    (root / "raw.txt").write_text("raw")
    edit(KNOWN, root / "params.yaml")
    for name, text in (("first", _FIRST), ("second", _SECOND), ("third", _THIRD)):
        (root / "stages" / f"{name}.py").write_text(text)
    shutil.rmtree(root / "stages" / "reporting")
    (root / "stages" / "reporting").mkdir()
    (root / "stages" / "reporting" / "__init__.py").touch()
    (root / "stages" / "reporting" / "__main__.py").write_text(_REPORTING)


def make_second_stale(workspace: Workspace) -> None:
    """An edit of the code of `second`: both of its instances must run again."""
    with (workspace.root / "stages/second.py").open("a") as file:
        file.write("# edited\n")


def begin(workspace: Workspace, *module: str, **extra: str) -> "subprocess.Popen[str]":
    """Starts `python -m MODULE ...` in the workspace and does not wait for it."""
    return subprocess.Popen(
        [sys.executable, "-m", *module],
        cwd=workspace.root,
        env=workspace.env | extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_sleeping(workspace: Workspace) -> int:
    """Waits until `second@b` sleeps (TINY_END=sleep); its process id."""
    path = workspace.root / "sleeping.pid"
    deadline = time.monotonic() + 300.0
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, "second@b was not reached"
        time.sleep(0.05)
    return int(path.read_text())


def until_gone(pid: int, limit_s: float = 120.0) -> None:
    """Waits until a process has ended."""
    deadline = time.monotonic() + limit_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)
