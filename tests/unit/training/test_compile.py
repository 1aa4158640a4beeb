"""torch.compile: about the same weights; where it fails the plain network is trained, and a line says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.training.fit import fit
from tests.unit.training import toy

ROOT = Path(__file__).parents[3]


SETTINGS = {"optimizer": "sgd", "momentum": 0.9, "epochs": 2}  # Adam would make much of rounding.


def plain() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, toy.CLASSES))


def train(folder: Path, prepared: Prepared, module: nn.Module, **settings: Any) -> nn.Module:
    job = toy.job(folder, prepared, module, settings=settings, store=Store("toy", folder.name, "c"))
    fit(job)
    return job.module


BOTH = """
import sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from stages.data.prepared import Prepared
from stages.runtime import seeds
from tests.unit.training.test_compile import SETTINGS, plain, train

seeds.apply(0, 1)
folder = Path(sys.argv[1])
prepared = Prepared.open(folder / "data")

def distance(one, other):
    assert type(one) is type(other)
    state = other.state_dict()
    return max((value - state[name]).abs().max().item() for name, value in one.state_dict().items())

eager = train(folder / "eager", prepared, plain(), **SETTINGS)
compiled = train(folder / "compiled", prepared, plain(), compile=True, **SETTINGS)
print("compiled", distance(compiled, eager), counters["stats"]["unique_graphs"])
torch._dynamo.reset()
torch._inductor.config.cpp.cxx = (str(folder / "nothing"),)  # As with CXX pointing to nothing.
torch._inductor.config.force_disable_caches = True
fallen = train(folder / "fallen", prepared, plain(), compile=True, **SETTINGS)
print("fallen", distance(fallen, eager))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(" " in sys.prefix, reason="torch hands its include path to the compiler unquoted: no space in it")
def test_compiled_it_is_close_and_without_a_compiler_it_is_the_plain_one(tmp_path: Path) -> None:
    """In a process of its own: compilers and caches are its environment."""
    toy.prepare(tmp_path / "data", train=48)  # Every micro-batch has the same size: it is compiled once.
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BOTH, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split("\ncompiled ")
    distance, graphs = after.splitlines()[0].split()
    assert "does not work here" not in before
    assert 0.0 < float(distance) < 1e-4
    assert int(graphs) >= 1
    assert "warning: torch.compile does not work here" in after
    assert "fallen 0.0" in after


RESUMED = """
import sys
from pathlib import Path
import torch
from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime import seeds, stopping
from stages.runtime.exits import Stopped
from stages.training.fit import fit
from tests.unit.training import toy
from tests.unit.training.test_compile import SETTINGS, Counted

seeds.apply(0, 1)
stopping.install()
folder = Path(sys.argv[1])
prepared = Prepared.open(folder / "data")

def run(name, stop_at=None):
    torch._dynamo.reset()  # As in a new process.
    settings, store = {**SETTINGS, "compile": True}, Store("toy", name, "c")
    job = toy.job(folder / name, prepared, Counted(), settings=settings, store=store)
    def loss(logits, labels, raw):
        if job.module.steps.item() == stop_at:
            stopping._state.requested = True
        return torch.nn.functional.cross_entropy(logits, labels)
    job.loss = loss
    try:
        fit(job)
    except Stopped:
        stopping._state.requested = False
        return "stopped"
    return module_hash(job.module)

whole = run("whole")
print("RESULT", run("cut", stop_at=17), run("cut") == whole)
"""


class Counted(nn.Module):
    """Counts its training passes; the count of the trial is not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.inner(rows)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(" " in sys.prefix, reason="torch hands its include path to the compiler unquoted: no space in it")
def test_it_resumes_bit_for_bit_where_windows_differ_in_size(tmp_path: Path) -> None:
    toy.prepare(tmp_path / "data", train=46)  # Windows of 8 and 6, micro-batches of 4 and 2.
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RESUMED, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "RESULT stopped True" in done.stdout
    assert "does not work here" not in done.stdout
