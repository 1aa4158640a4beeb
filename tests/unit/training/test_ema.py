"""Moving average of the weights: the closed form, its start, and which of the two is handed on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.config.fit import Ema
from stages.data.prepared import Prepared
from stages.training.ema import Average
from stages.training.evaluate import evaluate
from stages.training.fit import fit
from stages.training.job import Job
from tests.unit.training import toy
from tests.unit.training.acting import Act, loss_that, meta, rows, stop_in, stopped_and_resumed


def walk(module: nn.Module, steps: int) -> list[list[Tensor]]:
    """Random weights after each of the steps, in float64; `module` is left at the last ones by the caller."""
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in module.parameters()]
        for _ in range(steps)
    ]


def put(module: nn.Module, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), weights, strict=True):
            parameter.copy_(value)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("start_step", [0, 4])
def test_it_is_the_bias_corrected_sum(decay: float, start_step: int) -> None:
    module = nn.Linear(3, 2).double()
    average = Average(module, Ema(decay=decay, start_step=start_step))
    path = walk(module, 12)
    for step, weights in enumerate(path, 1):
        put(module, weights)
        average.update(step)
        found = average.module_state()
        counted = path[start_step:step]
        if not counted:
            expected = weights
        else:
            t = len(counted)
            scale = (1 - decay) / (1 - decay**t)
            expected = [
                sum(scale * decay ** (t - i) * values[part] for i, values in enumerate(counted, 1)) for part in (0, 1)
            ]
        for name, value in zip(("weight", "bias"), expected, strict=True):
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-14)
        assert torch.equal(module.weight, weights[0])  # The weights themselves are left alone.


def test_a_module_that_hangs_in_two_places_is_averaged_under_both_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.two = nn.BatchNorm1d(2)

    module = Twice()
    average = Average(module, Ema(decay=0.5))
    for step in (1, 2, 3):
        put(module, [torch.full((2,), float(step)), torch.full((2,), float(-step))])
        average.update(step)
    state = average.module_state()
    assert float(state["one.weight"][0]) == pytest.approx((1 * 0.25 + 2 * 0.5 + 3) / 1.75)
    for name in ("weight", "bias", "running_mean", "num_batches_tracked"):
        assert torch.equal(state[f"one.{name}"], state[f"two.{name}"])
    with average.in_place():
        assert torch.equal(module.one.weight, state["two.weight"])


def test_in_place_holds_the_average_and_puts_the_weights_back() -> None:
    module = toy.network()
    average = Average(module, Ema(decay=0.5))
    module.train()
    module(torch.randn(8, 6))  # Moves BatchNorm's statistics, a whole number among them.
    before = module_hash(module)
    average.update(1)
    module(torch.randn(8, 6))
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    average.update(2)
    raw = module_hash(module)
    assert raw != before
    inside = ""

    def look_and_fail() -> None:
        nonlocal inside
        with average.in_place():
            inside = module_hash(module)
            raise KeyError

    with pytest.raises(KeyError):
        look_and_fail()
    assert module_hash(module) == raw
    other = toy.network()
    other.load_state_dict(average.module_state())
    assert module_hash(other) == inside != raw


def make(folder: Path, prepared: Prepared, *acts: Act, **settings: Any) -> Job:
    store = Store("toy", folder.name, "c")
    return toy.job(folder, prepared, settings=settings, loss=loss_that(*acts), store=store)


NOISY = {"lr": 0.3, "schedule": "constant", "optimizer": "sgd", "clip_norm": None, "epochs": 6}
"""Steps so long that the average of many weights is better than the last ones."""


def test_the_better_one_is_handed_on(tmp_path: Path, prepared: Prepared) -> None:
    chosen = {}
    for name, settings in {
        "ema": {**NOISY, "ema": {"decay": 0.8}},
        "raw": {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "ema": {"decay": 0.999}},
    }.items():
        job = make(tmp_path / name, prepared, **settings)
        fitted = fit(job)
        chosen[name] = fitted.weights
        epoch = rows(job, "epochs.jsonl")[fitted.best_epoch - 1]
        prefix = "ema_val" if fitted.weights == "ema" else "val"
        assert (epoch[f"{prefix}_accuracy"], epoch[f"{prefix}_loss"]) == pytest.approx(
            (fitted.val.accuracy, fitted.val.loss)
        )
        ranks = {one: (epoch[f"{one}_accuracy"], -epoch[f"{one}_loss"]) for one in ("val", "ema_val")}
        assert ranks[prefix] == max(ranks.values())
        assert meta(job)["best_weights"] == fitted.run["weights"] == fitted.weights
        best = job.store.load(fitted_step(job)).payload
        both = {"raw": best["module"], "ema": best["average"]["module"]}
        held = job.module.state_dict()
        assert all(torch.equal(held[key], value) for key, value in both[fitted.weights].items())
        other = both["raw" if fitted.weights == "ema" else "ema"]
        assert not all(torch.equal(held[key], value) for key, value in other.items())
        assert evaluate(job.module, job.preprocess, prepared, "val", batch_size=4) == fitted.val
    assert chosen == {"ema": "ema", "raw": "raw"}


def fitted_step(job: Job) -> int:
    saved = job.store.latest()
    assert saved is not None
    return int(saved.meta["best"]["step"])


def test_the_average_changes_nothing_in_the_weights(tmp_path: Path, prepared: Prepared) -> None:
    with_average = make(tmp_path / "a", prepared, ema={"decay": 0.9})
    without = make(tmp_path / "b", prepared)
    fit(with_average)
    fit(without)
    assert rows(with_average, "steps.jsonl") == rows(without, "steps.jsonl")
    states = []
    for job in (with_average, without):
        saved = job.store.latest()
        assert saved is not None
        states.append(saved.payload["module"])
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    columns = ("val_loss", "val_accuracy", "train_loss")
    for one, other in zip(rows(with_average, "epochs.jsonl"), rows(without, "epochs.jsonl"), strict=True):
        assert [one[name] for name in columns] == [other[name] for name in columns]


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("stop", [3, 9, 12, 20])
def test_it_resumes_bit_for_bit(tmp_path: Path, prepared: Prepared, stop: int) -> None:
    settings = {**NOISY, "epochs": 4, "ema": {"decay": 0.8, "start_step": 7}}
    unbroken = make(tmp_path / "a", prepared, **settings)
    fit(unbroken)
    resumed, _ = stopped_and_resumed(lambda act: make(tmp_path / "b", prepared, act, **settings), stop_in(stop))
    assert toy.result(resumed) == toy.result(unbroken)
    found, wanted = (job.store.latest() for job in (resumed, unbroken))
    assert found is not None
    assert wanted is not None
    assert found.payload["average"]["count"] == wanted.payload["average"]["count"] == 24 - 7
    for name, value in wanted.payload["average"]["module"].items():
        assert torch.equal(found.payload["average"]["module"][name], value)
