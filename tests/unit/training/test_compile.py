"""torch.compile: about the same weights; where it fails the plain network is trained, and a line says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

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


COMPILED = """
import sys, warnings
from pathlib import Path
from stages.data.prepared import Prepared
from stages.runtime import seeds
from tests.unit.training.test_compile import SETTINGS, plain, train

seeds.apply(0, 1)
folder = Path(sys.argv[1])
prepared = Prepared.open(folder / "data")
compiled = train(folder / "compiled", prepared, plain(), compile=True, **SETTINGS)
eager = train(folder / "eager", prepared, plain(), **SETTINGS)
assert type(compiled) is type(eager)
state = eager.state_dict()
print(max((value - state[name]).abs().max().item() for name, value in compiled.state_dict().items()))
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"])
"""


def compiled(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, with an empty cache: compilers and caches are its environment."""
    toy.prepare(folder / "data", train=48)  # Every micro-batch has the same size: it is compiled once.
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), **environment}
    command = [sys.executable, "-c", COMPILED, str(folder)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_weights_are_close(tmp_path: Path) -> None:
    done = compiled(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "does not work here" not in done.stdout
    distance, graphs = done.stdout.splitlines()[-2:]
    assert float(distance) < 1e-4
    assert int(graphs) >= 1


def test_without_a_compiler_the_plain_network_is_trained(tmp_path: Path) -> None:
    done = compiled(tmp_path, CXX=str(tmp_path / "nothing"))
    assert done.returncode == 0, done.stderr
    assert "warning: torch.compile does not work here" in done.stdout
    assert float(done.stdout.splitlines()[-2]) == 0.0
