"""A cache object that is missing or damaged: fetched or made again, never used."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import cache, clones
from tests.conftest import Workspace

pytestmark = pytest.mark.integration


def object_of(tree: Path, stage: str, name: str) -> Path:
    """The cache's file of one file in a stage's first output."""
    lock = yaml.safe_load((tree / "dvc.lock").read_text())
    folder = lock["stages"][stage]["outs"][0]["md5"]
    entries = json.loads(place(tree, folder).read_bytes())
    return place(tree, next(entry["md5"] for entry in entries if entry["relpath"] == name))


def place(tree: Path, oid: str) -> Path:
    return tree / ".dvc/cache/files/md5" / oid[:2] / oid[2:]


def damage(path: Path) -> None:
    path.chmod(0o644)
    path.write_text("damaged")
    path.chmod(0o444)


def clone_of(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Path:
    monkeypatch.setenv("SHIPWAY_STATE", str(workspace.root / ".shipway"))
    workspace.git("add", "-A")
    workspace.git("commit", "-q", "--allow-empty", "-m", "done")
    found = clones.for_run(workspace.root, "0" * 8, "run", None, said.append)
    cache.bring_in(found.root, said.append)
    return found.root


@pytest.mark.parametrize("how", ["damaged", "missing", "damaged folder"])
def test_it_is_made_again(tiny: Workspace, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    said: list[str] = []
    target = object_of(tiny.root, "third", "joined.txt")
    before = target.read_bytes()
    lock = tiny.read("dvc.lock")
    if how == "missing":
        target.unlink()
    else:
        folder = yaml.safe_load(lock)["stages"]["third"]["outs"][0]["md5"]
        damage(target if how == "damaged" else place(tiny.root, folder))
    root = clone_of(tiny, monkeypatch, said)
    assert any("damaged object" in line for line in said) is (how != "missing")
    assert not (root / "artifacts/third/joined.txt").exists()
    assert (root / "artifacts/second/a/copy.txt").exists()
    done = Workspace(root, tiny.env | {"SHIPWAY_STATE": str(tiny.root / ".shipway")}).shipway("run")
    assert "Running stage 'third'" in done.stdout
    assert "Running stage 'second" not in done.stdout
    assert (root / "artifacts/third/joined.txt").read_bytes() == target.read_bytes() == before
    assert (root / "dvc.lock").read_bytes() == lock


def test_it_is_fetched_where_there_is_a_remote(
    tiny: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    tiny.dvc("remote", "add", "--default", "storage", str(tmp_path / "storage"))
    tiny.shipway("push")
    target = object_of(tiny.root, "third", "joined.txt")
    before = target.read_bytes()
    damage(target)
    root = clone_of(tiny, monkeypatch, said)
    assert (root / "artifacts/third/joined.txt").read_bytes() == target.read_bytes() == before
    done: Any = Workspace(root, tiny.env).shipway("run")
    assert "nothing to do" in done.stdout
