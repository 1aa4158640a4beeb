"""The bundle's predict.py in a virtual environment that has numpy, onnxruntime and Pillow, and nothing else of ours."""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.data.prepared import Prepared
from tests.conftest import ROOT
from tests.unit.deployment.build import conv_net
from tests.unit.deployment.test_bundle import make_bundle, make_inputs

pytestmark = pytest.mark.integration

NEEDED = ("numpy", "onnxruntime", "pillow")


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the pinned versions of the three."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, *NEEDED]
    subprocess.run(command, check=True)
    return python


def test_predict_needs_nothing_else(bare_python: Path, images: Path, tmp_path: Path) -> None:
    listed = subprocess.run([bare_python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
    installed = {row["name"].lower() for row in json.loads(listed.stdout)}
    assert set(NEEDED) <= installed
    assert not installed & {"onnx", "torch", "pydantic", "shipway"}
    prepared = Prepared.open(images)
    bundle = make_bundle(make_inputs(images, conv_net(prepared, (4, 8)), tmp_path), tmp_path / "bundle")
    samples = prepared.read(prepared.indices("test")[:3])
    Image.fromarray(samples[0, :, :, 0]).save(tmp_path / "one.png")
    np.savez(tmp_path / "three.npz", x_train=samples[..., 0], y_train=np.zeros(3))  # As a source takes it.
    command = ["predict.py", "--check", str(tmp_path / "one.png"), str(tmp_path / "three.npz")]
    (tmp_path / "home").mkdir()
    env = {"HOME": str(tmp_path / "home")}  # Without the variables that keep ONNX Runtime from reporting to its maker.
    alone, here = (
        subprocess.run([python, "-I", *command], cwd=bundle, env=env, capture_output=True, text=True, check=False)
        for python in (bare_python, sys.executable)
    )
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout == here.stdout
    assert not list((tmp_path / "home").iterdir()), "nothing is kept about the user, nothing is sent"
    assert re.match(r"whole: 7 files, 5 stored predictions agree\n", alone.stdout)
    assert len(alone.stdout.splitlines()) == 5
