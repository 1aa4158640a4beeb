"""Checkpoints: durable, checked, few; damaged ones refused; one process at a time."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.checkpoints.files import describe
from stages.checkpoints.store import Store
from stages.runtime.exits import BadData, DiskFault

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path / "state"))


def store(code: str = "c" * 64, **changes: Any) -> Store:
    made = Store("train", "f" * 64, code, about={"data": "d", "params": {"train": {"lr": 0.1}}}, **changes)
    made.folder.mkdir(parents=True, exist_ok=True)
    return made


def save(to: Store, step: int, best: int | None = None, status: str = "running") -> Path:
    payload = {"module": {"weight": torch.full((100,), float(step))}}
    return to.save(step, payload, {"status": status, "epoch": step}, best_step=best)


def steps(of: Store) -> list[int]:
    return sorted(int(path.stem[5:]) for path in of.folder.glob("*.pt"))


def test_those_that_were_not_due_are_kept_until_the_next_one() -> None:
    to = store()
    for step in range(1, 9):
        to.save(step, {"weights": torch.ones(2)}, {"status": "running"}, None, due=step % 2 == 0)
        assert to.load(step).step == step
    assert steps(to) == [4, 6, 8]


def test_the_last_three_and_the_best_are_kept() -> None:
    kept = store()
    for step, best in [(0, 0), (10, 10), (20, 10), (30, 10), (40, 10), (50, 10)]:
        save(kept, step, best)
    assert steps(kept) == [10, 30, 40, 50]
    save(kept, 60, 60)
    assert steps(kept) == [10, 40, 50, 60]  # 10 stays while a checkpoint names it: 60 may turn out damaged.
    assert {path.suffix for path in kept.folder.iterdir() if path.is_file()} == {".pt", ".json"}
    assert [path.name for path in sorted(kept.folder.glob("copies/*.pt"))] == ["step-000000010.pt"]


def test_the_newest_comes_back_whole() -> None:
    kept = store()
    save(kept, 1, 1)
    save(kept, 2, 1)
    found = kept.latest()
    assert found is not None
    assert (found.step, found.meta["best_step"], found.meta["data"]) == (2, 1, "d")
    assert found.payload["module"]["weight"].tolist() == [2.0] * 100
    assert kept.load(1).payload["module"]["weight"][0] == 1.0
    assert not kept.finished
    save(kept, 3, 1, status="finished")
    assert kept.finished


def test_nothing_saved_is_nothing_found() -> None:
    assert store().latest() is None
    assert not store().finished


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def altered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def never_sealed(path: Path) -> None:
    path.with_suffix(".json").unlink()


def half_sealed(path: Path) -> None:
    path.with_suffix(".json").write_text('{"sha2')


@pytest.mark.parametrize("damage", [truncated, altered, never_sealed, half_sealed])
def test_a_damaged_one_is_refused_and_the_one_before_taken(damage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kept = store()
    save(kept, 1, 1)
    damage(save(kept, 2, 1))
    found = kept.latest()
    assert found is not None
    assert found.step == 1
    assert "step-000000002.pt is refused" in capsys.readouterr().out
    save(kept, 2, 1)  # Trained and saved again.
    assert kept.latest().step == 2  # type: ignore[union-attr]


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [truncated, altered, never_sealed, half_sealed, removed])
@pytest.mark.parametrize("named", ["best_step", "anchor_step"])
def test_one_that_later_ones_need_is_taken_from_its_second_copy(
    damage: Any, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = store()
    for step in range(2, 9):
        kept.save(step, {"value": torch.tensor(step)}, {"status": "running"}, **{"best_step": None, named: 2})
    damage(kept.folder / "step-000000002.pt")
    found = kept.latest()
    assert found is not None
    assert found.step == 8
    assert kept.load(2).payload["value"] == 2
    assert capsys.readouterr().out.count("its second copy takes its place") == 1


@pytest.mark.parametrize("named", ["best_step", "anchor_step"])
def test_one_whose_best_or_anchor_is_damaged_twice_is_refused(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    kept = store()
    for step, other in [(1, 1), (2, 2), (3, 2)]:
        kept.save(step, {"value": torch.tensor(step)}, {"status": "running"}, **{"best_step": None, named: other})
    altered(kept.folder / "step-000000002.pt")
    altered(kept.folder / "copies/step-000000002.pt")
    found = kept.latest()
    assert found is not None
    assert found.step == 1
    assert "checkpoint of step 3" in capsys.readouterr().out
    with pytest.raises(DiskFault, match="step 2"):
        kept.load(2)


def test_a_checkpoint_that_is_made_again_is_copied_again() -> None:
    kept = store()
    for value in (1.0, 2.0):  # The second time after a rollback.
        for step in (1, 2):
            kept.save(step, {"value": torch.tensor(value)}, {"status": "running"}, best_step=1)
    altered(kept.folder / "step-000000001.pt")
    assert kept.load(1).payload["value"] == 2.0


def test_a_damaged_one_is_not_copied() -> None:
    kept = store()
    altered(save(kept, 1, 1))
    save(kept, 2, 1)
    assert not list(kept.folder.glob("copies/*"))
    assert kept.latest() is None


def test_a_write_cut_off_by_a_kill_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    kept = store()
    save(kept, 1, 1)
    (kept.folder / ".step-000000002.pt.99.tmp").write_bytes(b"half")
    assert kept.latest().step == 1  # type: ignore[union-attr]
    assert "was not written to its end" in capsys.readouterr().out
    assert not list(kept.folder.glob("*.tmp"))


def test_a_full_disk_leaves_the_former_one() -> None:
    """A limit on the file size stands for a full disk: the write ends in OSError half-way."""
    script = """
import resource, signal, sys, torch
from stages.checkpoints.store import Store
store = Store("train", "f" * 64, "c" * 64)
meta = {"status": "running"}
store.save(1, {"module": {"w": torch.zeros(10)}}, meta, best_step=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
try:
    store.save(2, {"module": {"w": torch.zeros(1_000_000)}}, meta, best_step=1)
except OSError as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "OSError"
    kept = store()
    assert kept.latest().step == 1  # type: ignore[union-attr]
    assert steps(kept) == [1]
    assert not list(kept.folder.glob(".*"))


def test_other_code_is_kept_and_not_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = store("a" * 64), store("b" * 64)
    save(old, 5, 5)
    assert new.latest() is None
    assert "the code changed" in capsys.readouterr().out
    assert steps(old) == [5]
    across = store("b" * 64, across_code=True)
    assert across.latest().step == 5  # type: ignore[union-attr]
    assert steps(old) == [5]
    assert steps(new) == [5]


def test_other_libraries_are_as_other_code(capsys: pytest.CaptureFixture[str]) -> None:
    installed = store().libraries
    assert set(installed) == {"numpy", "python", "torch"}
    assert installed["python"].count(".") == 1
    old = store(libraries={**installed, "torch": "2.1.0"})
    save(old, 5, 5)
    assert store().latest() is None
    assert f"the libraries changed (torch 2.1.0 -> {installed['torch']}) since" in capsys.readouterr().out
    assert store(across_code=True).latest().step == 5  # type: ignore[union-attr]
    assert f"although the libraries changed (torch 2.1.0 -> {installed['torch']})" in capsys.readouterr().out
    assert steps(old) == [5]


def test_finished_with_other_libraries_is_not_taken() -> None:
    old = store(libraries={**store().libraries, "numpy": "1.0.0"})
    save(old, 5, 5, status="finished")
    assert old.finished
    assert not store().finished
    assert store(across_code=True).latest() is None


def test_finished_by_other_code_is_not_gone_on_with() -> None:
    save(store("a" * 64), 5, 5, status="finished")
    assert store("b" * 64, across_code=True).latest() is None


def test_describe_and_clear() -> None:
    kept = store()
    path = save(kept, 7, 7)
    told = describe(path)
    assert (told["stage"], told["step"], told["params"], told["intact"]) == ("train", 7, {"train": {"lr": 0.1}}, True)
    json.dumps(told)
    path.with_suffix(".json").unlink()
    assert describe(path)["intact"] is None
    path.with_suffix(".json").write_text("{")  # As a full disk may leave it.
    assert describe(path)["intact"] is False
    kept.clear()
    assert kept.latest() is None


@pytest.mark.parametrize("content", [b"", b"no checkpoint", "pickle"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "x.pt"
    if content == "pickle":
        torch.save({"meta": {"run": os.system}}, path)  # Code inside must never be loaded.
    else:
        path.write_bytes(content)
    with pytest.raises(BadData, match="is no checkpoint of Shipway"):
        describe(path)
    with pytest.raises(BadData, match="cannot be read"):
        describe(tmp_path / "gone.pt")


def test_the_lock_lets_one_process_in_at_a_time(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from stages.checkpoints.store import Store
with Store("train", "f" * 64, "c" * 64).locked():
    Path(sys.argv[1]).write_text("in")
    time.sleep(0.6)
    Path(sys.argv[1]).write_text("out")
"""
    mark = tmp_path / "mark"
    process = subprocess.Popen([sys.executable, "-c", script, str(mark)], cwd=ROOT)
    while not mark.exists() or mark.read_text() != "in":
        time.sleep(0.02)
    with store().locked():
        assert mark.read_text() == "out"
    assert process.wait(30) == 0
    with store().locked():  # Left by the first one, and by the death of a process too.
        pass


def test_checkpoints_that_changed_places_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    kept = store()
    for step in (1, 2, 3):
        save(kept, step)
    one, three = kept.folder / "step-000000001.pt", kept.folder / "step-000000003.pt"
    for suffix in (".pt", ".json"):
        content = three.with_suffix(suffix).read_bytes()
        three.with_suffix(suffix).write_bytes(one.with_suffix(suffix).read_bytes())
        one.with_suffix(suffix).write_bytes(content)
    found = store().latest()
    assert found is not None
    assert found.step == 2
    assert "by its own words it is of step 1 of another place" in capsys.readouterr().out


def test_a_checkpoint_of_another_training_is_refused() -> None:
    other = Store("train", "0" * 64, "c" * 64)
    save(other, 4)
    shutil.copytree(other.folder, store().folder, dirs_exist_ok=True)
    assert store().latest() is None


def test_folders_and_odd_names_are_no_checkpoints() -> None:
    save(store(), 1)
    (store().folder / "step-000000009.pt").mkdir()
    (store().folder / "step-\u00b2\u00b3.pt").touch()
    save(store(), 2)
    found = store().latest()
    assert found is not None
    assert found.step == 2
