"""The working tree: looked at before a run, and one run at a time."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flows import workspace
from flows.ends import Refused
from stages.config.exits import Exit


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    (tmp_path / ".dvc").mkdir()
    return tmp_path


def test_the_root_is_found_only_where_it_is(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert workspace.root() == tree
    (tree / "below").mkdir()
    monkeypatch.chdir(tree / "below")
    with pytest.raises(Refused, match=f"cd {tree}"):
        workspace.root()


def test_probing_leaves_nothing_behind(tree: Path) -> None:
    workspace.check_writable(tree)
    assert sorted(path.name for path in tree.rglob("*")) == [".dvc", ".shipway", "artifacts", "dvc.yaml", "params.yaml"]


@pytest.mark.parametrize("name", ["artifacts", ".shipway"])
def test_a_file_in_a_folders_place_is_refused(tree: Path, name: str) -> None:
    (tree / name).write_text("mine")
    with pytest.raises(Refused, match="must be a folder, but a file is in its place") as caught:
        workspace.check_writable(tree)
    assert caught.value.code == Exit.DISK
    assert (tree / name).read_text() == "mine"


def test_a_dangling_link_is_refused(tree: Path) -> None:
    (tree / "artifacts").symlink_to(tree / "a disk that is not mounted")
    with pytest.raises(Refused, match="artifacts") as caught:
        workspace.check_writable(tree)
    assert caught.value.code == Exit.DISK


def test_a_folder_that_cannot_be_written_is_refused(tree: Path) -> None:
    """Also where the tests run as root, whom permissions do not stop: then as another user."""
    (tree / "artifacts").mkdir()
    for folder in (tree, *tree.parents):
        if stat.S_IMODE(folder.stat().st_mode) == 0o700:  # What pytest made for this user alone.
            folder.chmod(0o777)
    (tree / "artifacts").chmod(0o555)
    code = (
        "import os, sys; from pathlib import Path; from flows import ends, workspace\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: workspace.check_writable(Path(sys.argv[1]))\n"
        "except ends.Refused as refused: print(int(refused.code), refused.sentence)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tree)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("74 cannot write into the folder artifacts: Permission denied")


def test_one_run_at_a_time(tree: Path) -> None:
    workspace.check_writable(tree)
    code = (
        "import sys; from pathlib import Path; from flows import ends, workspace\n"
        "try:\n  with workspace.only_run(Path(sys.argv[1]), print, limit_s=0.2): print('inside')\n"
        "except ends.Refused as refused: print(int(refused.code), refused.sentence)"
    )
    command = [sys.executable, "-c", code, str(tree)]
    with workspace.only_run(tree, print), workspace.only_run(tree, print):
        assert workspace.held()
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith("another run (process")
    assert said[1].startswith("75 another run (process")
    assert workspace.held() == ()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "inside\n"
