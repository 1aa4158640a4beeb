"""Fixtures of the reporting's tests."""

import shutil
from pathlib import Path

import pytest

from tests.unit.reporting.build import make_artifacts


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of a finished pipeline; tests take a copy."""
    return make_artifacts(tmp_path_factory.mktemp("made") / "artifacts")


@pytest.fixture
def here(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace of the test's own, outside git, with the artifacts in it; the current folder."""
    root = tmp_path / "a workspace"
    shutil.copytree(made, root / "artifacts")
    monkeypatch.chdir(root)
    monkeypatch.delenv("SHIPWAY_STATE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return root
