"""Our reading of dvc.lock against the real DVC."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.checkpoints.dvclock import is_recorded

DVC_YAML = """
stages:
  make:
    cmd: echo made > out.txt
    deps: [folder, file.txt]
    params: [seed, train.lr, model]
    outs: [out.txt]
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "a repository"
    (root / "folder" / "sub").mkdir(parents=True)
    (root / "folder" / "sub" / "ä.txt").write_text("1")
    (root / "folder" / "b.txt").write_text("2")
    (root / "folder" / "__pycache__").mkdir()
    (root / "folder" / "__pycache__" / "x.pyc").write_text("cache")
    (root / "file.txt").write_text("3")
    (root / "params.yaml").write_text("seed: 0\ntrain: {lr: 0.1, epochs: 3}\nmodel: {name: mlp}\n")
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / ".dvcignore").write_text("__pycache__\n*.pyc\n")
    monkeypatch.chdir(root)
    for command in (["init", "-q", "--no-scm"], ["repro", "-q"]):
        env = os.environ | {"DVC_NO_ANALYTICS": "1"}
        subprocess.run([sys.executable, "-m", "dvc", *command], check=True, env=env)
    return root


def test_recorded_until_something_changes(repository: Path) -> None:
    assert is_recorded("make")
    assert not is_recorded("other")
    (repository / "folder" / "__pycache__" / "y.pyc").write_text("ignored, as DVC does")
    assert is_recorded("make")
    changes = {
        "folder/b.txt": "other",
        "file.txt": "other",
        "params.yaml": "seed: 0\ntrain: {lr: 0.2, epochs: 3}\nmodel: {name: mlp}\n",
    }
    for name, content in changes.items():
        before = (repository / name).read_text()
        (repository / name).write_text(content)
        assert not is_recorded("make"), name
        (repository / name).write_text(before)
        assert is_recorded("make")
    (repository / "params.yaml").write_text("seed: 0\ntrain: {lr: 0.1, epochs: 9}\nmodel: {name: mlp}\n")
    assert is_recorded("make")  # train.epochs is none of its parameters.
    (repository / "folder" / "new.txt").write_text("")
    assert not is_recorded("make")


def test_no_lock_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not is_recorded("make")
    (tmp_path / "dvc.lock").write_text("a: [")
    assert not is_recorded("make")
