"""One stage marked as stale in dvc.lock: whole at every moment, and as before when nothing ran."""

from pathlib import Path

import pytest

from flows import dvc

LOCK = """\
schema: '2.0'
stages:
  train:
    cmd: python -m stages.train
    params:
      params.yaml:
        seed: 0
  prune:
    cmd: python -m stages.prune
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "dvc.lock"
    path.write_text(LOCK)
    return path


def test_inside_the_stage_has_another_command_and_after_it_all_is_as_before(lock: Path) -> None:
    with dvc.to_be_run_again(lock.parent, "train"):
        assert lock.read_text() == LOCK.replace("python -m stages.train", "to be run again")
    assert lock.read_text() == LOCK
    assert list(lock.parent.iterdir()) == [lock]


def test_what_the_run_wrote_stays(lock: Path) -> None:
    with dvc.to_be_run_again(lock.parent, "train"):
        lock.write_text("written by DVC")
    assert lock.read_text() == "written by DVC"


def test_the_file_is_replaced_not_rewritten(lock: Path) -> None:
    """A reader that opened it before still reads a whole file."""
    with lock.open() as opened, dvc.to_be_run_again(lock.parent, "prune"):
        assert opened.read() == LOCK
        assert lock.stat().st_ino != Path(f"/proc/self/fd/{opened.fileno()}").stat().st_ino


def test_a_stage_without_an_entry_changes_nothing(lock: Path) -> None:
    before = lock.stat().st_ino
    with dvc.to_be_run_again(lock.parent, "bundle"):
        assert lock.read_text() == LOCK
    assert lock.stat().st_ino == before
    lock.unlink()
    with dvc.to_be_run_again(lock.parent, "train"):
        assert not lock.exists()
