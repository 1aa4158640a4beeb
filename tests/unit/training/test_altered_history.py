"""What is resumed or taken over is what was written: a history that is not is made again, never published."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.nn.functional as F
from torch import Tensor

from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime import stopping
from stages.runtime.exits import DiskFault, Stopped
from stages.training.fit import fit
from stages.training.job import Job
from tests.unit.training import toy
from tests.unit.training.acting import loss_that, stop_in


def same_length(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a file removed": lambda history: (history / "steps.jsonl").unlink(),
    "a file cut": lambda history: cut(history / "epochs.jsonl"),
    "a file altered": lambda history: same_length(history / "steps.jsonl"),
    "the folder removed": shutil.rmtree,
}

SEALED: dict[str, Callable[[Path], object]] = {
    "a row added": lambda history: (history / "steps.jsonl").write_text((history / "steps.jsonl").read_text() + "{}\n"),
    "meta.json removed": lambda history: (history / "meta.json").unlink(),
    "meta.json altered": lambda history: (history / "meta.json").write_text("[]"),
}


def job(folder: Path, prepared: Prepared, *acts: Callable[..., float]) -> Job:
    return toy.job(folder, prepared, loss=loss_that(*acts), store=Store("toy", folder.name, "c"))


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("damage", DAMAGE)
def test_an_unfinished_one_goes_on_from_where_it_is_whole(
    tmp_path: Path, prepared: Prepared, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = job(tmp_path / "whole", prepared)
    fit(whole)
    stopped = job(tmp_path / "parts", prepared, stop_in(15))
    with pytest.raises(Stopped):
        fit(stopped)
    DAMAGE[damage](stopped.store.history)
    stopping._state.requested = False
    again = job(tmp_path / "parts", prepared)
    fit(again)
    assert "warning: toy: does not go on from step 15: " in capsys.readouterr().out
    assert toy.result(again) == toy.result(whole)


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("damage", DAMAGE)
def test_other_codes_are_gone_on_from_where_they_are_whole(
    tmp_path: Path, prepared: Prepared, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `resume.across_code`; the history lies beside the other code's checkpoints."""
    whole = job(tmp_path / "whole", prepared)
    fit(whole)
    stopped = job(tmp_path / "parts", prepared, stop_in(15))
    with pytest.raises(Stopped):
        fit(stopped)
    DAMAGE[damage](stopped.store.history)
    stopping._state.requested = False
    changed = toy.job(tmp_path / "parts", prepared, store=Store("toy", "parts", "d", across_code=True))
    fit(changed)
    assert "warning: toy: does not go on from step 15: " in capsys.readouterr().out
    assert toy.result(changed) == toy.result(whole)


WHILE = {
    "a file altered": DAMAGE["a file altered"],
    "a file cut": DAMAGE["a file cut"],
    "no JSON": lambda history: (history / "epochs.jsonl").write_text("{" * 2000),
}


@pytest.mark.parametrize("damage", WHILE)
@pytest.mark.parametrize("then", ["the end", "a rollback"])
def test_what_is_altered_while_the_training_runs_is_never_published(
    tmp_path: Path, prepared: Prepared, damage: str, then: str
) -> None:
    whole = job(tmp_path / "whole", prepared)
    fit(whole)
    calls = 0

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 40:
            WHILE[damage](damaged.store.history)
        return F.cross_entropy(logits, labels) * (float("nan") if calls == 42 and then != "the end" else 1.0)

    recovery = {"recovery": {"max_rollbacks": 1}}
    damaged = toy.job(tmp_path / "parts", prepared, loss=loss, settings=recovery, store=Store("toy", "parts", "c"))
    with pytest.raises(DiskFault, match=r"history/.*jsonl is missing or was altered; run again"):
        fit(damaged)
    assert not (damaged.history / "meta.json").exists()
    again = toy.job(tmp_path / "parts", prepared, settings=recovery, store=Store("toy", "parts", "c"))
    assert not fit(again).reused
    assert toy.result(again) == toy.result(whole)


def test_files_where_folders_must_be_are_removed(
    tmp_path: Path, prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    first = job(tmp_path / "a", prepared)
    fit(first)
    expected = toy.result(first)
    for name in ("copies", "history"):
        shutil.rmtree(first.store.folder / name, ignore_errors=True)
        (first.store.folder / name).write_text("in the way")
    again = job(tmp_path / "a", prepared)
    assert not fit(again).reused
    assert capsys.readouterr().out.count("must be a folder; the file is removed") == 2
    assert toy.result(again) == expected


@pytest.mark.usefixtures("stoppable")
def test_damaged_checkpoints_that_the_newest_one_needs_cost_nothing(
    tmp_path: Path, prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one of the best epoch, and the one to roll back to."""
    whole = job(tmp_path / "whole", prepared)
    fit(whole)
    stopped = job(tmp_path / "parts", prepared, stop_in(23))
    with pytest.raises(Stopped):
        fit(stopped)
    older = [path for path in stopped.store.folder.glob("step-*.pt") if path.stem != "step-000000023"]
    assert len(older) > 1
    for path in older:
        same_length(path)
    stopping._state.requested = False
    again = job(tmp_path / "parts", prepared)
    fit(again)
    said = capsys.readouterr().out
    assert "its second copy takes its place" in said
    assert "is refused" not in said
    assert "goes on after step 23 of 24" in said
    assert toy.result(again) == toy.result(whole)


@pytest.mark.parametrize("damage", [*DAMAGE, *SEALED])
def test_a_finished_one_is_trained_again(
    tmp_path: Path, prepared: Prepared, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = job(tmp_path / "a", prepared)
    fit(first)
    expected = toy.result(first)
    {**DAMAGE, **SEALED}[damage](first.store.history)
    again = job(tmp_path / "a", prepared)
    assert not fit(again).reused
    assert "is trained again" in capsys.readouterr().out
    assert toy.result(again) == expected
