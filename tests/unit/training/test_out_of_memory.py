"""Memory runs out in a training step: the window is taken again in smaller micro-batches, each sample counts once."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime.exits import BadParams
from stages.training.fit import fit
from tests.unit.training import toy
from tests.unit.training.acting import loss_that, meta, rows, stop_in, stopped_and_resumed, window

PLAIN = {"optimizer": "sgd", "momentum": 0.9, "clip_norm": None, "lr": 0.1}


def out_of_cuda_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def out_of_memory_for_real() -> None:
    torch.empty(2**52, dtype=torch.uint8)


def out_of_python_s_memory() -> None:
    bytearray(2**60)


class Held:
    """Lives as long as the autograd graph that it was made in."""


class Keep(torch.autograd.Function):
    """The identity; its node in the graph holds an object."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, alive: list["weakref.ref[Held]"]) -> Tensor:
        ctx.held = Held()
        alive.append(weakref.ref(ctx.held))
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Hungry(nn.Module):
    """From a forward pass on (counted from 1, in training), takes `most` samples at once and no more."""

    def __init__(
        self, inner: nn.Module, most: int, from_pass: int = 1, fail: Callable[[], None] = out_of_cuda_memory
    ) -> None:
        super().__init__()
        self.inner = inner
        self.most, self.from_pass, self.fail = most, from_pass, fail
        self.passes, self.failures = 0, 0
        self.graphs: list[weakref.ref[Held]] = []
        self.alive_at_retry: list[int] = []

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return self.inner(values)
        if self.failures > len(self.alive_at_retry):
            self.alive_at_retry.append(sum(graph() is not None for graph in self.graphs))
        self.passes += 1
        logits = Keep.apply(self.inner(values), self.graphs)  # All that a pass holds is there already.
        if self.passes >= self.from_pass and len(values) > self.most:
            self.failures += 1
            self.fail()
        return logits


def plain() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, toy.CLASSES)).double()


def run(folder: Path, prepared: Prepared, module: nn.Module, micro_batch: int, **settings: Any) -> Any:
    store = Store("toy", folder.name, "c")
    job = toy.job(folder, prepared, module, settings=settings, micro_batch=micro_batch, store=store)
    if next(module.parameters()).dtype == torch.float64:
        job.preprocess.double()
    return job


@pytest.mark.parametrize("fail", [out_of_cuda_memory, out_of_memory_for_real, out_of_python_s_memory])
def test_the_third_of_four_fails_and_nothing_is_lost(
    tmp_path: Path, prepared: Prepared, fail: Callable[[], None]
) -> None:
    """In float64 and without BatchNorm and dropout the weights are those of a run that nothing disturbed."""
    good = run(tmp_path / "good", prepared, Hungry(plain(), 8), 2, **PLAIN)
    fit(good)
    hungry = Hungry(plain(), 1, from_pass=4 + 3, fail=fail)  # The third micro-batch of step 2.
    job = run(tmp_path / "bad", prepared, hungry, 2, **PLAIN)
    fitted = fit(job)
    assert (hungry.failures, fitted.micro_batch, meta(job)["micro_batch"]) == (1, 1, 1)
    for found, wanted in zip(job.module.parameters(), good.module.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    steps, expected = rows(job, "steps.jsonl"), rows(good, "steps.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 25))
    assert [row["loss"] for row in steps] == pytest.approx([row["loss"] for row in expected], rel=1e-8)
    assert [row["grad_norm"] for row in steps] == pytest.approx([row["grad_norm"] for row in expected], rel=1e-8)
    for found, wanted in zip(rows(job, "epochs.jsonl"), rows(good, "epochs.jsonl"), strict=True):
        assert found["train_confusion"] == wanted["train_confusion"]
        assert found["train_loss"] == pytest.approx(wanted["train_loss"], rel=1e-8)
    (event,) = rows(job, "events.jsonl")
    assert (event["kind"], event["step"], event["epoch"]) == ("out_of_memory", 2, 1)
    assert event["samples"] == window(job, 2)
    assert rows(good, "events.jsonl") == []


def test_batchnorm_and_dropout_are_put_back(tmp_path: Path, prepared: Prepared) -> None:
    """It fails in the first window, so that all is as if it had begun with the smaller micro-batch: bit for bit."""
    small = run(tmp_path / "small", prepared, Hungry(toy.network(), 4), 2, batch_size=16)
    fit(small)
    hungry = Hungry(toy.network(), 2, from_pass=3)
    job = run(tmp_path / "halved", prepared, hungry, 4, batch_size=16)
    fit(job)
    assert hungry.failures == 1
    assert module_hash(job.module.inner) == module_hash(small.module.inner)
    found, wanted = toy.result(job), toy.result(small)
    for name in ("steps.jsonl", "epochs.jsonl", "meta.json"):
        assert found[name] == wanted[name], name


def test_it_is_halved_until_it_fits(tmp_path: Path, prepared: Prepared) -> None:
    job = run(tmp_path, prepared, Hungry(plain(), 1), 8, **PLAIN)
    assert fit(job).micro_batch == 1
    events = rows(job, "events.jsonl")
    assert [event["what"].split(";")[0] for event in events] == [
        f"micro-batch {size} did not fit into memory" for size in (8, 4, 2)
    ]
    assert len(rows(job, "steps.jsonl")) == 24


def test_what_the_failed_pass_held_is_free_before_the_retry(tmp_path: Path, prepared: Prepared) -> None:
    hungry = Hungry(plain(), 1, from_pass=7)
    fit(run(tmp_path, prepared, hungry, 4, **PLAIN))
    assert hungry.failures == 2
    assert hungry.alive_at_retry == [0, 0]


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("stop", [1, 2, 3, 6, 20])
def test_it_stays_halved_after_a_resume(tmp_path: Path, prepared: Prepared, stop: int) -> None:
    unbroken = run(tmp_path / "unbroken", prepared, Hungry(toy.network(), 2, from_pass=3), 4)
    fit(unbroken)
    jobs = 0

    def make(act: Any) -> Any:
        nonlocal jobs
        jobs += 1
        already = 2 if jobs == 2 and stop == 1 else 0  # Passes that the first process made before it failed.
        module = Hungry(toy.network(), 2, from_pass=3 - already if stop == 1 or jobs == 1 else 10**6)
        job = run(tmp_path / "resumed", prepared, module, 4)
        job.loss = loss_that(act)
        return job

    job, fitted = stopped_and_resumed(make, stop_in(stop))
    assert fitted.micro_batch == 2
    assert toy.result(job) == toy.result(unbroken)
    assert len(rows(job, "events.jsonl")) == 1


def test_not_even_one_sample_fits(tmp_path: Path, prepared: Prepared) -> None:
    with pytest.raises(BadParams, match="1 samples do not fit into the memory of cpu"):
        fit(run(tmp_path, prepared, Hungry(plain(), 0), 4, **PLAIN))


def test_halving_can_be_forbidden(tmp_path: Path, prepared: Prepared) -> None:
    hungry = Hungry(plain(), 2)
    with pytest.raises(BadParams, match="4 samples do not fit"):
        fit(run(tmp_path, prepared, hungry, 4, **PLAIN, recovery={"halve_micro_batch": False}))
    assert hungry.failures == 1


class HungryInValidation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()

    def forward(self, values: Tensor) -> Tensor:
        if not self.training and len(values) > 2:
            out_of_cuda_memory()
        return self.inner(values)


def test_a_validation_that_does_not_fit_takes_less_at_a_time(tmp_path: Path, prepared: Prepared) -> None:
    job = run(tmp_path / "a", prepared, HungryInValidation(), 4, **PLAIN, ema={"decay": 0.9})
    assert fit(job).micro_batch == 2
    (event,) = rows(job, "events.jsonl")
    assert (event["kind"], event["step"], event["epoch"], event["samples"]) == ("out_of_memory", 6, 1, [])
    good = run(tmp_path / "b", prepared, Hungry(plain(), 8), 4, **PLAIN, ema={"decay": 0.9})
    fit(good)
    assert rows(job, "steps.jsonl")[:6] == rows(good, "steps.jsonl")[:6]
    for one, other in zip(rows(job, "epochs.jsonl"), rows(good, "epochs.jsonl"), strict=True):
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-6)
        assert one["val_confusion"] == other["val_confusion"]


def test_the_optimizers_own_state_does_not_fit(tmp_path: Path, prepared: Prepared) -> None:
    """Its activations are free by then: a smaller micro-batch would not help, another optimizer does."""
    hook = register_optimizer_step_pre_hook(lambda *_: out_of_cuda_memory())
    try:
        with pytest.raises(BadParams, match=r"the optimizer sgd keeps .* take `optimizer: lion`"):
            fit(run(tmp_path, prepared, plain(), 4, **PLAIN))
    finally:
        hook.remove()
