"""Stopped anywhere and resumed: weights and history equal the unbroken run's, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch.nn.functional as F
from torch import Tensor

from stages.checkpoints.store import Store
from stages.data import prepared as prepared_module
from stages.data.loaders import LoaderSettings
from stages.data.prepared import Prepared
from stages.runtime.exits import Stopped
from stages.training.fit import fit
from tests.unit.training import toy

STEPS = 24
ROOT = Path(__file__).parents[3]


@pytest.fixture
def unbroken(tmp_path: Path, prepared: Prepared) -> dict[str, str]:
    job = toy.job(tmp_path / "unbroken", prepared, store=Store("toy", "unbroken", "c"))
    fit(job)
    return toy.result(job)


def stop_in_step(step: int) -> object:
    calls = 0

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2 * step:
            os.kill(os.getpid(), signal.SIGTERM)
        return F.cross_entropy(logits, labels)

    return loss


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("step", [1, 5, 6, 7, 12, 17, 23, 24])  # 6, 12, 24: exactly at an epoch's end
def test_sigterm_in_a_step(tmp_path: Path, prepared: Prepared, unbroken: dict[str, str], step: int) -> None:
    with pytest.raises(Stopped, match=f"after step {step} of {STEPS}"):
        fit(toy.job(tmp_path, prepared, loss=stop_in_step(step)))
    resume_and_compare(tmp_path, prepared, unbroken)


@pytest.mark.usefixtures("stoppable")
def test_sigint_in_the_validation(tmp_path: Path, prepared: Prepared, unbroken: dict[str, str]) -> None:
    job = toy.job(tmp_path, prepared)
    asked = 0

    def stop(module: object, inputs: object) -> None:
        nonlocal asked
        asked += not job.module.training
        if asked == 7 and not job.module.training:  # The second batch of the second validation (5 batches each).
            os.kill(os.getpid(), signal.SIGINT)

    handle = job.module.register_forward_pre_hook(stop)
    with pytest.raises(Stopped, match="after step 12"):
        fit(job)
    handle.remove()
    resume_and_compare(tmp_path, prepared, unbroken)


def resume_and_compare(folder: Path, prepared: Prepared, unbroken: dict[str, str], **changes: object) -> None:
    from stages.runtime import stopping

    stopping._state.requested = False
    resumed = toy.job(folder, prepared, **changes)
    fitted = fit(resumed)
    assert toy.result(resumed) == unbroken
    assert [(s["from_step"], s["to_step"]) for s in fitted.lineage][-1][1] == STEPS
    assert len(fitted.lineage) == 2
    assert fitted.lineage[1]["from_step"] == fitted.lineage[0]["to_step"]


@pytest.mark.usefixtures("stoppable")
def test_skipped_samples_are_not_read(
    tmp_path: Path, prepared: Prepared, unbroken: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stopped):
        fit(toy.job(tmp_path, prepared, loss=stop_in_step(21)))
    from stages.runtime import stopping

    stopping._state.requested = False
    read = []
    original = prepared_module.Prepared.read
    monkeypatch.setattr(prepared_module.Prepared, "read", lambda self, i: read.append(len(i)) or original(self, i))
    fit(toy.job(tmp_path, prepared))
    assert sum(read) == (46 - 3 * 8) + 20  # what is left of the last epoch, and its validation


@pytest.mark.usefixtures("stoppable")
def test_workers_change_nothing_and_are_gone_after_a_stop(
    tmp_path: Path, prepared: Prepared, unbroken: dict[str, str]
) -> None:
    loader = LoaderSettings(workers=2, batched=False)
    before = {child.pid for child in psutil.Process().children(recursive=True)}  # A server that other tests share.
    with pytest.raises(Stopped):
        fit(toy.job(tmp_path, prepared, loss=stop_in_step(8), loader=loader))
    children = [_line(child) for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [line for line in children if "resource_tracker" not in line] == []
    resume_and_compare(tmp_path, prepared, unbroken, loader=loader)


def _line(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def run(folder: Path, delay_s: float, workers: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-m", "tests.unit.training.toy", str(folder), str(delay_s), str(workers)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_epoch(process: "subprocess.Popen[str]", epoch: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"toy: epoch {epoch} of"):
            return
    pytest.fail("the process ended early")


def group(leader: int) -> list[psutil.Process]:
    """Processes that are alive in the group."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):  # Gone since it was listed.
            if os.getpgid(process.pid) == leader:
                found.append(process)
    return found


def end(process: "subprocess.Popen[str]", how: signal.Signals | None = None) -> int:
    """The exit status; -number when a signal ended it."""
    if how is not None:
        process.send_signal(how)
    process.communicate(timeout=60)
    return process.returncode


def test_real_processes_stopped_and_killed(tmp_path: Path, prepared: Prepared, unbroken: dict[str, str]) -> None:
    """SIGTERM: 75 at once. kill -9 in a later epoch. Then it runs to its end; the result is this process's own."""
    assert prepared.folder == tmp_path / "data"
    first = run(tmp_path, 0.05, workers=2)
    wait_for_epoch(first, 1)
    time.sleep(0.17)
    os.killpg(first.pid, signal.SIGTERM)  # As a supervisor does: the whole group, with workers alive.
    assert end(first) == 75
    assert not group(first.pid)
    second = run(tmp_path, 0.05)
    wait_for_epoch(second, 2)
    time.sleep(0.13)
    assert end(second, signal.SIGKILL) == -signal.SIGKILL
    assert end(run(tmp_path, 0.0)) == 0
    assert json.loads((tmp_path / "result.json").read_text()) == unbroken


def test_finished_is_reused_and_not_trained(tmp_path: Path, prepared: Prepared) -> None:
    job = toy.job(tmp_path, prepared)
    done = fit(job)

    def never(logits: Tensor, labels: Tensor, raw: Tensor) -> Tensor:
        raise AssertionError("trained again")

    again = toy.job(tmp_path / "again", prepared, loss=never)
    reused = fit(again)
    assert reused.reused
    assert (reused.val, reused.best_epoch, reused.lineage) == (done.val, done.best_epoch, done.lineage)
    assert toy.result(again) == toy.result(job)


def test_finished_is_trained_again_where_it_is_recorded(tmp_path: Path, prepared: Prepared) -> None:
    job = toy.job(tmp_path, prepared)
    fit(job)
    again = toy.job(tmp_path / "again", prepared, store=Store("toy", "f" * 64, "c" * 64, reuse_finished=False))
    assert not fit(again).reused
    assert toy.result(again) == toy.result(job)


@pytest.mark.usefixtures("stoppable")
def test_other_code_starts_again_or_goes_on(
    tmp_path: Path, prepared: Prepared, unbroken: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped):
        fit(toy.job(tmp_path, prepared, loss=stop_in_step(8)))
    from stages.runtime import stopping

    stopping._state.requested = False
    other = toy.job(tmp_path / "other", prepared, store=Store("toy", "f" * 64, "d" * 64))
    fitted = fit(other)
    assert "starts again: the code changed" in capsys.readouterr().out
    assert (len(fitted.lineage), fitted.run["mixed"]) == (1, False)
    assert toy.result(other) == unbroken
    mixed = toy.job(tmp_path / "mixed", prepared, store=Store("toy", "f" * 64, "e" * 64, across_code=True))
    fitted = fit(mixed)
    assert "although the code changed" in capsys.readouterr().out
    assert [s["code"][0] for s in fitted.lineage] == ["c", "e"]
    assert fitted.run["mixed"] is True
    assert toy.result(mixed) == unbroken
