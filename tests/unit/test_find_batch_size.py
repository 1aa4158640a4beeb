"""The search under a real memory budget, in a real child process."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from stages.config.find_batch_size import FindBatchSize
from stages.config.model import Model
from stages.find_batch_size import FindBatchSizeParams, Inputs, Outputs, run
from stages.runtime.exits import BadParams, GateFailed
from stages.training.batch_search import smaller
from tests.unit.training import toy

HERE = "tests.unit.test_find_batch_size"
WIDTH = 64_000
BATCH = 800
SAMPLE_MIB = 4 * WIDTH * 2 / 2**20
"""Least memory per sample of `wide`: its hidden layer and that layer's gradient, float32."""


def wide(classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, classes))


def large(classes: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 10_000), nn.Linear(10_000, 10_000), nn.Linear(10_000, classes))


def not_in_training(classes: int) -> Any:
    from torch import nn

    class Fails(nn.Linear):
        def forward(self, rows: Any) -> Any:
            print("a model may print; it must not disturb the answers")
            if self.training:
                raise ValueError("this layer\ncannot be trained")
            return super().forward(rows)

    return Fails(6, classes)


def faster_together(classes: int) -> Any:
    """A pass takes the same time for any number of samples: a larger micro-batch is always clearly faster."""
    import time

    from torch import nn

    class Even(nn.Linear):
        def forward(self, rows: Any) -> Any:
            time.sleep(0.1)
            return super().forward(rows)

    return Even(6, classes)


def slower_together(classes: int) -> Any:
    """More samples at once take more time each: a larger micro-batch is never clearly faster."""
    import time

    from torch import nn

    class Slow(nn.Linear):
        def forward(self, rows: Any) -> Any:
            time.sleep((0.01 if len(rows) <= 8 else 0.015) * len(rows))
            return super().forward(rows)

    return Slow(6, classes)


def dies(classes: int) -> Any:
    import os

    os._exit(9)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    toy.prepare(tmp_path / "data", train=2000)
    (tmp_path / "decision").mkdir()
    return tmp_path


def find(place: Path, model: str = "wide", batch_size: int = BATCH, **settings: Any) -> dict[str, Any]:
    name = f"{HERE}:{model}" if model != "mlp" else model
    params = FindBatchSizeParams(
        seed=0, threads=1, model=Model(name=name), find_batch_size=FindBatchSize(**settings), batch_size=batch_size
    )
    result = run(params, Inputs(place / "data"), Outputs(place / "decision"))
    decided = json.loads((place / "decision/decision.json").read_text())
    return {**decided, "summary": result.summary, "evidence": result.evidence}


def measured(place: Path) -> dict[str, Any]:
    return dict(json.loads((place / "artifacts/find_batch_size/measured.json").read_text()))


def test_medium_budget_gives_a_smaller_micro_batch_that_was_run(place: Path) -> None:
    whole = find(place)
    assert (whole["micro_batch"], whole["accumulation"]) == (BATCH, 1)
    assert set(whole["device"]) >= {"kind", "processor", "cores"}
    took = measured(place)
    assert took["peak_mib"] > BATCH * SAMPLE_MIB
    assert "whole batch fits" in whole["summary"]
    budget = (took["peak_mib"] - 0.3 * BATCH * SAMPLE_MIB) / 0.9  # Far from the whole batch and from half of it.
    found = find(place, memory_budget_mib=budget, safety_margin=0.1)
    assert found["micro_batch"] == BATCH // 2
    assert found["accumulation"] * found["micro_batch"] == BATCH
    tried = found["evidence"]["tried"]
    assert [row["fits"] for row in tried] == [False] * (len(tried) - 1) + [True]
    assert tried[-1]["micro_batch"] == found["micro_batch"]
    assert measured(place)["peak_mib"] <= budget * 0.9
    again = find(place, memory_budget_mib=budget, safety_margin=0.1)
    assert [row["micro_batch"] for row in again["evidence"]["tried"]] == [row["micro_batch"] for row in tried]
    assert again["micro_batch"] == found["micro_batch"]


@pytest.mark.parametrize(("model", "expected"), [("faster_together", 64), ("slower_together", 8)])
def test_a_kept_small_one_grows_where_that_is_clearly_faster(place: Path, model: str, expected: int) -> None:
    """8 of 64 was kept in a moment of low memory; now there is enough."""
    assert find(place, model=model, batch_size=64)["micro_batch"] == 64
    [kept] = (place / "state/decisions/find_batch_size").iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "choice": 8}))
    found = find(place, model=model, batch_size=64)
    assert (found["micro_batch"], found["accumulation"]) == (expected, 64 // expected)
    assert [row["micro_batch"] for row in found["evidence"]["tried"]] == [64, 8]
    assert ("kept from before: 64 fits too" in found["summary"]) is (expected == 8)
    assert json.loads(kept.read_text())["choice"] == expected
    assert find(place, model=model, batch_size=64)["micro_batch"] == expected


def test_tiny_budget_is_refused(place: Path) -> None:
    with pytest.raises(GateFailed, match="not even one sample fits: a training must stay below 32 MiB") as caught:
        find(place, memory_budget_mib=40.0, batch_size=4)
    assert caught.value.evidence["base_mib"] > 32  # PyTorch alone takes more: no size has to be tried.
    assert not (place / "decision/decision.json").exists()


def test_a_budget_below_one_sample_is_refused(place: Path) -> None:
    """The weights alone (400 MiB, with gradient and optimizer state four times that) pass the budget."""
    with pytest.raises(GateFailed, match="not even one sample fits") as caught:
        find(place, model="large", memory_budget_mib=600.0, safety_margin=0.0, batch_size=2)
    assert [row["micro_batch"] for row in caught.value.evidence["tried"]] == [2, 1]


def test_fixed_runs_nothing(place: Path) -> None:
    found = find(place, model="dies", fixed_micro_batch=400)
    assert (found["micro_batch"], found["accumulation"], found["device"]) == (400, 2, None)
    with pytest.raises(BadParams, match=r"must divide train\.batch_size 800, got 300; take 200"):
        find(place, fixed_micro_batch=300)


def test_a_budget_for_no_search_is_refused() -> None:
    with pytest.raises(ValidationError, match="memory_budget_mib has no effect with fixed_micro_batch"):
        FindBatchSize(fixed_micro_batch=8, memory_budget_mib=1000.0)


def test_faults_of_the_network(place: Path) -> None:
    with pytest.raises(BadParams, match="failed on a batch of 8 in training: ValueError: this layer cannot be trained"):
        find(place, model="not_in_training", batch_size=8)
    with pytest.raises(BadParams, match="has no 'nothing'"):
        find(place, model="nothing")
    with pytest.raises(BadParams, match="the probe process ended by exit code 9 with a batch of 8"):
        find(place, model="dies", batch_size=8)


def test_more_than_the_train_split(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = find(place, model="mlp", batch_size=5000)
    assert found["micro_batch"] == 5000
    assert "above the 2000 train samples" in capsys.readouterr().out


@pytest.mark.parametrize(("batch_size", "sizes"), [(64, [32, 16, 8, 4, 2, 1]), (60, [30, 15, 6, 3, 1]), (7, [1])])
def test_ever_smaller_divisors(batch_size: int, sizes: list[int]) -> None:
    found, size = [], smaller(batch_size, batch_size)
    while size is not None:
        found.append(size)
        size = smaller(batch_size, size)
    assert found == sizes
