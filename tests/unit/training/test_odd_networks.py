"""Networks whose state is not what a state dict shows: resumed exactly, or refused in one sentence."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime import seeds
from stages.runtime.exits import BadParams
from stages.training.fit import fit
from stages.training.job import Job
from tests.unit.training import toy
from tests.unit.training.acting import loss_that, rows, stop_in, stopped_and_resumed


class Counting(nn.Module):
    """Changes buffers of its own in training, and its answers by them."""

    def __init__(self, *, persistent: bool, replaced: bool) -> None:
        super().__init__()
        seeds.apply(0, 1)
        self.inner = nn.Linear(6, toy.CLASSES)
        self.replaced = replaced
        self.register_buffer("mean", torch.zeros(6), persistent=persistent)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            moved = 0.9 * self.mean + 0.1 * rows.detach().mean(dim=0)
            if self.replaced:
                self.mean = moved
            else:
                self.mean.copy_(moved)
        return self.inner(rows - self.mean)


def job(folder: Path, prepared: Prepared, module: nn.Module, *acts: object, **settings: object) -> Job:
    return toy.job(
        folder, prepared, module, settings=settings, loss=loss_that(*acts), store=Store("toy", folder.name, "c")
    )


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("ema", [None, {"decay": 0.9}])
def test_buffers_come_back_however_they_are_kept(
    tmp_path: Path, prepared: Prepared, stoppable: None, persistent: bool, replaced: bool, ema: dict[str, float] | None
) -> None:
    def module() -> nn.Module:
        return Counting(persistent=persistent, replaced=replaced)

    whole = job(tmp_path / "whole", prepared, module(), ema=ema)
    fit(whole)
    parts, _ = stopped_and_resumed(
        lambda *acts: job(tmp_path / "parts", prepared, module(), *acts, ema=ema), stop_in(9)
    )
    assert toy.result(parts) == toy.result(whole)


class Growing(Counting):
    def __init__(self) -> None:
        super().__init__(persistent=True, replaced=False)
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            self.register_buffer("late", torch.zeros(2))
        return super().forward(rows)


def test_a_state_that_grows_in_training_is_refused(tmp_path: Path, prepared: Prepared) -> None:
    with pytest.raises(BadParams, match=r"must all be there from the start; late came or went in training"):
        fit(job(tmp_path / "late", prepared, Growing()))


def test_complex_weights_are_refused(tmp_path: Path, prepared: Prepared) -> None:
    module = Counting(persistent=True, replaced=False)
    module.odd = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(BadParams, match="weights must be real numbers, odd is complex"):
        fit(job(tmp_path / "complex", prepared, module))


class Masked(nn.Module):
    """Has a buffer of -inf from the start; spoils its running statistics in a pass, never the loss of its training."""

    def __init__(self, spoilt_pass: int) -> None:
        super().__init__()
        self.inner = toy.network()
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        self.passes, self.spoilt_pass = 0, spoilt_pass

    def forward(self, values: Tensor) -> Tensor:
        self.passes += self.training
        if self.training and self.passes == self.spoilt_pass:
            self.inner[2].running_mean.fill_(torch.nan)
        return self.inner(values)


def test_running_statistics_that_are_spoilt_alone_are_rolled_back(tmp_path: Path, prepared: Prepared) -> None:
    settings = {"recovery": {"max_rollbacks": 1}}
    job = toy.job(tmp_path, prepared, Masked(2 * 8), settings=settings, store=Store("toy", "stats", "c"))
    assert fit(job).status == "finished"
    (event,) = rows(job, "events.jsonl")
    assert (event["kind"], event["epoch"]) == ("rollback", 2)
    assert "running statistics" in event["what"]
    assert all(torch.isfinite(value).all() for name, value in job.module.state_dict().items() if name != "mask")


def test_fp16_goes_on_where_no_gradient_comes(tmp_path: Path, prepared: Prepared) -> None:
    job = toy.job(tmp_path, prepared, settings={"precision": "fp16", "epochs": 1}, store=Store("toy", "none", "c"))
    job.loss = lambda logits, labels, raw: torch.zeros((), requires_grad=True) + logits.detach().sum() * 0
    assert fit(job).status == "finished"


class Stateful(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_state_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(BadParams, match="state must be tensors, _extra_state is dict"):
        module_hash(Stateful(2, 2))
