"""What makes two trainings the same."""

from typing import Any

import pytest
import torch
from torch import nn

from stages.checkpoints.fingerprint import fingerprint
from stages.checkpoints.lineage import begin, is_mixed
from stages.config.base import identifying
from stages.config.fit import Fit


def module(width: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


def found(**changes: Any) -> str:
    given: dict[str, Any] = {
        "params": {"train": identifying(Fit())}, "data": "d", "inputs": {}, "seed": 0, "threads": 2, "micro_batch": 8,
        "module": module(),
    }  # fmt: skip
    return fingerprint(**{**given, **changes})


def test_equal_is_equal() -> None:
    assert found() == found()


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"train": identifying(Fit(lr=0.1))}},
        {"data": "e"},
        {"inputs": {"teacher": "x"}},
        {"seed": 1},
        {"threads": 1},
        {"micro_batch": 4},
        {"module": module(5)},
        {"module": module(seed=1)},
        {"module": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())},
    ],
)
def test_whatever_changes_the_result_counts(change: dict[str, Any]) -> None:
    assert found(**change) != found()


def test_what_only_accompanies_does_not_count() -> None:
    assert found(params={"train": identifying(Fit(log_every_steps=3, save_every_epochs=2))}) == found()


def test_lineage_is_mixed_only_by_steps_of_other_code() -> None:
    first, second = begin("a", 0), begin("b", 10)
    assert first["from_step"] == 0
    assert {"commit", "dirty", "versions", "host", "started"} <= set(first)
    first["to_step"] = 10
    assert not is_mixed([first, second])
    second["to_step"] = 20
    assert is_mixed([first, second])
    second["code"] = "a"
    assert not is_mixed([first, second])
    minor = ".".join(first["versions"]["python"].split(".")[:2])
    second["versions"] = {**first["versions"], "python": f"{minor}.99"}
    assert not is_mixed([first, second])
    second["versions"] = {**first["versions"], "torch": "2.1.0"}
    assert is_mixed([first, second])
