"""Saves in the background: a copy is written, a fault comes to light, a kill leaves the former checkpoint."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stages.checkpoints.background import Saver, copy_of, tensor_bytes
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime.exits import DiskFault, Stopped, as_stage_error
from stages.training.fit import fit
from tests.unit.training import toy
from tests.unit.training.acting import loss_that, stop_in, stopped_and_resumed

ROOT = Path(__file__).parents[3]
META = {"status": "running"}


def save(saver: Saver, step: int, payload: dict[str, Any], *, wait: bool = False) -> None:
    saver.save(step, payload, META, best_step=None, anchor_step=None, before=lambda: None, wait=wait)


def store() -> Store:
    return Store("toy", "f" * 64, "c")


def test_what_is_changed_after_the_save_does_not_enter() -> None:
    """Large enough that writing takes longer than changing."""
    weights, nested = torch.zeros(4_000_000), {"state": [{"step": torch.tensor(1.0)}], "list": [1, 2]}
    saver = Saver(store())
    save(saver, 1, {"weights": weights, "nested": nested})
    weights.fill_(7.0)
    nested["state"][0]["step"] += 1
    nested["list"].append(3)
    saver.wait()
    found = saver.store.load(1).payload
    assert not found["weights"].any()
    assert found["nested"] == {"state": [{"step": torch.tensor(1.0)}], "list": [1, 2]}


def test_training_writes_what_it_had_at_the_step(tmp_path: Path, prepared: Prepared) -> None:
    """Each checkpoint of a run that went on while it was written equals that of a run which ended there."""
    job = toy.job(tmp_path, prepared, settings={"save_every_steps": 1, "ema": {"decay": 0.9}})
    kept: dict[int, dict[str, Any]] = {}

    def keep(module: nn.Module, inputs: Any) -> None:
        for path in job.store.folder.glob("step-*.pt"):
            step = int(path.stem.removeprefix("step-"))
            if step not in kept and path.with_suffix(".json").exists():
                kept[step] = torch.load(path, weights_only=True)

    handle = job.module.register_forward_pre_hook(keep)
    fit(job)
    handle.remove()
    whole = toy.job(tmp_path / "b", prepared, settings={"ema": {"decay": 0.9}}, store=Store("toy", "b", "c"))
    states: dict[int, dict[str, Any]] = {}

    def remember(module: nn.Module, inputs: Any) -> None:
        if module.training:
            states.setdefault(len(states), copy_of(module.state_dict()))

    whole.module.register_forward_pre_hook(remember)
    fit(whole)
    compared = [step for step in kept if step < 24]
    assert len(compared) > 10
    for step in compared:
        for name, tensor in states[2 * step].items():  # Before the first of the next step's two micro-batches.
            assert torch.equal(kept[step]["module"][name], tensor), (step, name)


def test_a_fault_in_the_background_comes_to_light_once_and_the_former_one_loads(tmp_path: Path) -> None:
    saver = Saver(store())
    save(saver, 1, {"weights": torch.ones(3)}, wait=True)
    saver.store.folder.joinpath(f".step-{2:09d}.pt.{os.getpid()}.tmp").mkdir()  # Something lies in the way.
    save(saver, 2, {"weights": torch.ones(3)})
    with pytest.raises(OSError, match="step-000000002") as caught:
        saver.wait()
    assert isinstance(as_stage_error(caught.value), DiskFault)
    saver.poll()
    saver.store.folder.joinpath(f".step-{2:09d}.pt.{os.getpid()}.tmp").rmdir()
    latest = saver.store.latest()
    assert latest is not None
    assert latest.step == 1


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import torch
from stages.data.prepared import Prepared
from stages.runtime.exits import as_stage_error
from stages.training.fit import fit
from tests.unit.training import toy

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
steps = 0
def hook(module, inputs):
    global steps
    steps += module.training
    if steps == 17:  # In step 9, after the save of step 8.
        size = max(path.stat().st_size for path in job.store.folder.glob("step-*.pt"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
folder = Path(sys.argv[1])
job = toy.job(folder, Prepared.open(folder / "data"), settings={"save_every_steps": 2, "log_every_steps": 1000})
job.module.register_forward_pre_hook(hook)
try:
    fit(job)
except Exception as error:
    found = as_stage_error(error)
    print(type(found).__name__, found.code.value, found.sentence)
print("steps", steps)
"""


def test_a_full_disk_ends_the_training_and_the_former_checkpoint_goes_on(tmp_path: Path, prepared: Prepared) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "DiskFault 74 cannot write" in done.stdout, done.stdout + done.stderr
    assert "steps 48" not in done.stdout  # It did not train on to the end without a checkpoint.
    latest = store_of_toy().latest()
    assert latest is not None
    assert 6 <= latest.step <= 8
    resumed = toy.job(tmp_path, prepared, settings={"save_every_steps": 2})
    fit(resumed)
    unbroken = toy.job(tmp_path / "u", prepared, store=Store("toy", "unbroken", "c"))
    fit(unbroken)
    assert toy.result(resumed) == toy.result(unbroken)


def store_of_toy() -> Store:
    return Store("toy", "f" * 64, "c" * 64)


KILLED = """
import os, signal, sys, threading, time
import torch
from stages.checkpoints.background import Saver
from stages.checkpoints.store import Store

saver = Saver(Store("toy", "f" * 64, "c"))
weights = torch.ones(12_000_000)
def save(step):
    saver.save(step, {"weights": weights * step}, {"status": "running"}, best_step=None, anchor_step=None,
               before=lambda: None, wait=False)
save(1)
saver.wait()
save(2)
assert saver._thread.is_alive()
print("saving", flush=True)
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03])
def test_kill_9_during_a_save_leaves_a_whole_checkpoint(delay_s: float, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(delay_s)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "saving\n"), done.stderr
    latest = store().latest()
    assert latest is not None
    assert latest.step in (1, 2)  # Which one depends on how fast the disk is.
    assert torch.equal(latest.payload["weights"], torch.full((12_000_000,), float(latest.step)))
    if delay_s == 0.0:
        assert latest.step == 1


def test_the_end_of_a_training_waits_for_the_save(tmp_path: Path, prepared: Prepared) -> None:
    """A fault of the network right after a save began: it is whole when the error arrives."""
    job = toy.job(tmp_path, prepared, settings={"save_every_steps": 2})
    passes = 0

    def fail(module: nn.Module, inputs: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 5:  # Right after step 2.
            raise OSError(5, "Input/output error")

    job.module.register_forward_pre_hook(fail)
    with pytest.raises(OSError, match="Input/output"):
        fit(job)
    assert sorted(path.name for path in job.store.folder.glob("step-*2.*")) == [
        "step-000000002.json",
        "step-000000002.pt",
    ]


@pytest.mark.usefixtures("stoppable")
def test_a_stop_during_a_save_waits_for_it_and_saves(tmp_path: Path, prepared: Prepared) -> None:
    """SIGTERM in the step after a save began: the stop's own is written after it, and nothing is half-written."""
    wide = {"save_every_steps": 2}
    job, _ = stopped_and_resumed(
        lambda act: toy.job(tmp_path, prepared, settings=wide, loss=loss_that(act)), stop_in(2), stop_in(3), stop_in(12)
    )
    assert not list(job.store.folder.glob(".step-*.tmp"))
    unbroken = toy.job(tmp_path / "u", prepared, store=Store("toy", "unbroken", "c"))
    fit(unbroken)
    assert toy.result(job) == toy.result(unbroken)


@pytest.mark.usefixtures("stoppable")
def test_a_stop_while_the_training_ends_is_no_loss(tmp_path: Path, prepared: Prepared) -> None:
    """The signal comes when the network holds the best weights already: the next process finds a finished training."""
    from stages.runtime import stopping

    job = toy.job(tmp_path, prepared, settings={"reestimate_batchnorm": True})

    def ask(module: nn.Module, inputs: Any) -> None:
        if list(job.store.history.glob("meta.json")) and not stopping.requested():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)

    handle = job.module.register_forward_pre_hook(ask)
    with pytest.raises(Stopped):
        fit(job)
    handle.remove()
    stopping._state.requested = False
    again = toy.job(tmp_path, prepared, settings={"reestimate_batchnorm": True})
    assert fit(again).reused
    whole = toy.job(
        tmp_path / "u", prepared, settings={"reestimate_batchnorm": True}, store=Store("toy", "unbroken", "c")
    )
    fit(whole)
    assert toy.result(again) == toy.result(whole)


def test_where_memory_is_short_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    weights = torch.ones(1000)
    assert tensor_bytes({"a": [weights, weights], "b": 3}) == 8000
    available = psutil.virtual_memory()._replace(available=8000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    saver = Saver(store())
    save(saver, 1, {"weights": weights})
    assert saver._thread is None
    assert saver.store.load(1).step == 1
