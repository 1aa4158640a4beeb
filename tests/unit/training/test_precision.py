"""Mixed precision: it learns, gradients are unscaled before they are clipped, an overflow leaves no trace."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime.exits import BadParams
from stages.training.fit import fit
from stages.training.job import Job
from stages.training.precision import Precision, slowdown
from stages.training.schedule import learning_rate
from tests.unit.training import toy
from tests.unit.training.acting import Act, loss_that, meta, rows, stop_in, stopped_and_resumed, times

CPU = torch.device("cpu")


def make(folder: Path, prepared: Prepared, *acts: Act, **settings: Any) -> Job:
    store = Store("toy", folder.name, "c")
    return toy.job(folder, prepared, settings=settings, loss=loss_that(*acts), store=store)


def scaler_of(job: Job) -> dict[str, Any]:
    saved = job.store.latest()
    assert saved is not None
    return dict(saved.payload["precision"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_learns_about_what_float32_learns(
    tmp_path: Path, prepared: Prepared, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = make(tmp_path / "none", prepared)
    fit(whole)
    job = make(tmp_path / precision, prepared, precision=precision)
    assert fit(job).status == "finished"
    assert f"toy: {precision} takes " in capsys.readouterr().out
    assert all(tensor.dtype != torch.float16 for tensor in job.module.state_dict().values())
    found, wanted = ([row["loss"] for row in rows(one, "steps.jsonl")] for one in (job, whole))
    assert found == pytest.approx(wanted, abs=0.05)
    assert found != wanted
    assert [row["skipped"] for row in rows(job, "steps.jsonl")] == [False] * 24


def test_the_autocast_type_reaches_the_layers() -> None:
    for name, expected in (("none", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with Precision(name, CPU).forward():
            assert nn.Linear(3, 2)(torch.ones(1, 3)).dtype == expected


def test_an_overflow_skips_the_step_and_nothing_moves(tmp_path: Path, prepared: Prepared) -> None:
    """Neither weights nor schedule nor average advance; the scale is halved."""
    settings = {"precision": "fp16", "ema": {"decay": 0.5}, "save_every_steps": 1, "layers_every_steps": 1}
    job = make(tmp_path / "a", prepared, times(1e36, 8), **settings)  # Times the scale of 65536: no float32.
    states: dict[int, dict[str, torch.Tensor]] = {}

    def remember(module: nn.Module, _inputs: Any) -> None:
        if module.training and module is job.module:  # Not the copy that the speed is measured with.
            states[len(states)] = {name: p.detach().clone() for name, p in module.named_parameters()}

    handle = job.module.register_forward_pre_hook(remember)
    fitted = fit(job)
    handle.remove()
    assert fitted.status == "finished"
    steps = rows(job, "steps.jsonl")
    assert [row["step"] for row in steps if row["skipped"]] == [8]
    assert steps[7]["grad_norm"] == "nan"
    assert steps[7]["clipped"] is False
    rate = learning_rate(job.settings, 24)
    assert [row["lr"] for row in steps] == [rate(i - (i > 7)) for i in range(24)]
    assert meta(job)["skipped_steps"] == 1
    assert [row["step"] for row in rows(job, "layers.jsonl")] == [step for step in range(1, 25) if step != 8]
    first_of = [states[2 * step] for step in range(24)]  # Before each step, with its two micro-batches.
    assert all(torch.equal(first_of[8][name], first_of[7][name]) for name in first_of[7])
    assert not all(torch.equal(first_of[9][name], first_of[8][name]) for name in first_of[7])
    saved = job.store.latest()
    assert saved is not None
    assert saved.payload["average"]["count"] == 23
    assert scaler_of(job) == {**scaler_of(job), "scale": 32768.0, "_growth_tracker": 16}


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("stop", [8, 9])
def test_scale_and_counter_come_back(tmp_path: Path, prepared: Prepared, stop: int) -> None:
    settings = {"precision": "fp16", "ema": {"decay": 0.5}, "schedule": "warmup_linear"}
    unbroken = make(tmp_path / "a", prepared, times(1e36, 8), **settings)
    fit(unbroken)
    found = []

    def again(act: Act) -> Job:
        job = make(tmp_path / "b", prepared, times(1e36, 8), act, **settings)
        if job.store.folder.exists():
            found.append(scaler_of(job))
        return job

    resumed, _ = stopped_and_resumed(again, stop_in(stop))
    assert toy.result(resumed) == toy.result(unbroken)
    assert scaler_of(resumed) == scaler_of(unbroken)
    assert (found[-1]["scale"], found[-1]["_growth_tracker"]) == (32768.0, stop - 8)


def test_gradients_are_unscaled_before_clipping(tmp_path: Path) -> None:
    """The update is as long as the bound: scaled gradients would give other norms."""
    settings = {
        "epochs": 1, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": 1.0, "schedule": "constant",
    }  # fmt: skip
    moved, norms = [], []
    for name, precision, clip_norm in (("a", "fp16", 0.01), ("b", "none", 0.01), ("c", "fp16", 1000.0)):
        job = make(tmp_path / name, toy.prepare(tmp_path / f"{name}data", train=8), precision=precision,
                   clip_norm=clip_norm, **settings)  # fmt: skip
        before = [parameter.detach().clone() for parameter in job.module.parameters()]
        fit(job)
        parts = [(p - b).norm() for p, b in zip(job.module.parameters(), before, strict=True)]
        moved.append(torch.stack(parts).norm().item())
        norms.append(rows(job, "steps.jsonl")[0]["grad_norm"])
        assert rows(job, "steps.jsonl")[0]["clipped"] is (clip_norm == 0.01)
    assert moved[:2] == pytest.approx([0.01, 0.01], rel=1e-3)
    assert norms[0] == pytest.approx(norms[1], rel=0.02)
    assert moved[2] == pytest.approx(norms[2], rel=1e-3)


@pytest.mark.usefixtures("stoppable")
def test_bf16_resumes_bit_for_bit(tmp_path: Path, prepared: Prepared) -> None:
    unbroken = make(tmp_path / "a", prepared, precision="bf16")
    fit(unbroken)
    resumed, _ = stopped_and_resumed(
        lambda act: make(tmp_path / "b", prepared, act, precision="bf16"), stop_in(7), stop_in(12)
    )
    assert toy.result(resumed) == toy.result(unbroken)


def test_slowdown_leaves_no_trace() -> None:
    module = toy.network().train()
    before = module_hash(module)
    assert math.isfinite(slowdown("bf16", module, torch.randn(8, 6), 3))
    assert module_hash(module) == before
    assert all(parameter.grad is None for parameter in module.parameters())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    slowdown("fp16", module, F.pad(torch.ones(8, 5), (0, 1)), 3)
    assert torch.equal(torch.rand(3), expected)
    assert module.training


def test_a_failing_network_is_still_the_training_s_to_tell(tmp_path: Path, prepared: Prepared) -> None:
    """BatchNorm over one sample: the measurement says so, and the training blames the network."""
    job = toy.job(tmp_path, prepared, settings={"precision": "bf16", "batch_size": 4}, micro_batch=1)
    with pytest.raises(BadParams, match="the network failed on a batch of 1: ValueError"):
        fit(job)


def test_gradients_that_are_never_finite_end_the_training(tmp_path: Path, prepared: Prepared) -> None:
    """The loss is finite and every step would be skipped for ever: the loss scale is not at fault."""
    job = make(tmp_path / "never", prepared, precision="fp16", epochs=12)
    next(job.module.parameters()).register_hook(lambda gradient: gradient * math.nan)
    fitted = fit(job)
    assert fitted.status == "stopped"
    assert fitted.reason == "gradients that are not finite in 40 steps in a row, whatever the loss scale at step 40"
