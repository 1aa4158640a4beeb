"""Raw data that DVC tracks or imports: a change of its content makes the pipeline stale."""

import json

import numpy as np
import pytest

from tests.conftest import Workspace

pytestmark = pytest.mark.integration
SOURCE = "data={source: npz, path: raw.npz}"


def write(path: object, seed: int) -> None:
    random = np.random.default_rng(seed)
    np.savez(path, images=random.integers(0, 256, (90, 8, 8), dtype=np.uint8), labels=np.arange(90) % 3)  # type: ignore[arg-type]


def is_stale(workspace: Workspace) -> bool:
    return "prepare_data" in json.loads(workspace.dvc("status", "--json", "prepare_data").stdout)


def test_a_file_under_dvc_add(workspace: Workspace) -> None:
    write(workspace.root / "raw.npz", 0)
    workspace.dvc("add", "raw.npz")
    workspace.shipway("run", "prepare_data", "--set", SOURCE)
    assert not is_stale(workspace)
    write(workspace.root / "raw.npz", 1)
    workspace.dvc("add", "raw.npz")
    assert is_stale(workspace)
    workspace.shipway("run", "prepare_data")
    assert not is_stale(workspace)


def test_an_imported_file_and_dvc_update(workspace: Workspace) -> None:
    outside = workspace.root.parent / "outside.npz"
    write(outside, 0)
    workspace.dvc("import-url", str(outside), "raw.npz")
    workspace.shipway("run", "prepare_data", "--set", SOURCE)
    write(outside, 1)
    workspace.dvc("update", "raw.npz.dvc")
    assert is_stale(workspace)
    workspace.shipway("run", "prepare_data")
    assert not is_stale(workspace)
