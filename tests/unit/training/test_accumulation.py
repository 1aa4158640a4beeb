"""Accumulation is exact to the whole batch: unequal micro-batches, short last windows, one sample left over."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stages.data.loaders import epoch_order
from stages.data.prepared import Prepared
from stages.training.fit import fit
from tests.unit.training import toy

PLAIN = {"epochs": 1, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None, "warmup_share": 0.0}


def plain_network() -> nn.Module:
    """No BatchNorm and no dropout: their results depend on the split of the batch by their nature."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, toy.CLASSES))


def by_hand(prepared: Prepared, windows: list[int], lr_of: list[float]) -> nn.Module:
    """Whole windows as one batch each, in float64."""
    module = plain_network().double()
    order = epoch_order(prepared.indices("train"), 0, 1)
    at = 0
    for size, lr in zip(windows, lr_of, strict=True):
        chosen = order[at : at + size]
        at += size
        raw = torch.from_numpy(prepared.read(chosen)).double()
        loss = F.cross_entropy(module((raw - 0.5) / 0.5), torch.from_numpy(prepared.labels[chosen]))
        module.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= lr * parameter.grad
    return module


@pytest.mark.parametrize(
    ("train", "batch_size", "micro_batch", "windows"),
    [
        (40, 12, 4, [12, 12, 12, 4]),  # ten micro-batches of 4 with N = 3: the last window holds one
        (10, 4, 1, [4, 4, 2]),
        (46, 20, 4, [20, 20, 6]),  # a last window of 4 + 2
        (46, 20, 20, [20, 20, 6]),
        (45, 20, 4, [20, 20, 5]),  # a last micro-batch of one joins the one before it
        (41, 20, 4, [20, 21]),  # ... across the window
        (5, 20, 10, [5]),  # fewer samples than one micro-batch
        (11, 20, 10, [11]),
    ],
)
def test_weights_equal_whole_batches_in_float64(
    tmp_path: Path, train: int, batch_size: int, micro_batch: int, windows: list[int]
) -> None:
    prepared = toy.prepare(tmp_path / "data", train=train)
    module = plain_network().double()
    settings = {**PLAIN, "batch_size": batch_size, "lr": 0.5}
    job = toy.job(tmp_path, prepared, module, settings=settings, micro_batch=micro_batch)
    job.preprocess.double()
    fit(job)
    lr_of = [0.5 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * i / len(windows), dtype=torch.float64)).item())
             for i in range(len(windows))]  # fmt: skip
    expected = by_hand(prepared, windows, lr_of)
    for found, wanted in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("train", [9, 17, 1 + 8 * 3, 5, 3])
def test_batch_norm_with_one_sample_left_over(tmp_path: Path, train: int) -> None:
    """Nine samples in batches of 8 leave one: BatchNorm has no spread over it."""
    prepared = toy.prepare(tmp_path / "data", train=train)
    fitted = fit(toy.job(tmp_path, prepared, settings={"epochs": 2}))
    assert fitted.status == "finished"
