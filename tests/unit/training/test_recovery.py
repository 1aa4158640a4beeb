"""NaN rolls back, steep gradients are clipped, rules watch the validation: the same with and without a stop between."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime.exits import BadParams
from stages.training.fit import fit
from stages.training.history import Step
from stages.training.job import Job
from stages.training.schedule import learning_rate
from tests.unit.training import toy
from tests.unit.training.acting import (
    Act,
    Killed,
    killed_in,
    loss_that,
    meta,
    rows,
    stop_in,
    stopped_and_resumed,
    times,
    window,
)

NAN = float("nan")
ROLLING = {"recovery": {"max_rollbacks": 2}}
SPOILT = 15


def make(folder: Path, prepared: Prepared, *acts: Act, **settings: Any) -> Job:
    store = Store("toy", folder.name, "c")
    return toy.job(folder, prepared, settings={**ROLLING, **settings}, loss=loss_that(*acts), store=store)


def bound(job: Job, step: int) -> float:
    """Between the schedule's learning rate of the step (counted from 1) and its half."""
    return 0.75 * learning_rate(job.settings, 24)(step - 1)


@pytest.fixture
def spoilt(tmp_path: Path, prepared: Prepared) -> Act:
    """NaN at step 15 unless the learning rate was lowered."""
    return times(NAN, SPOILT, bound(make(tmp_path / "x", prepared), SPOILT))


@pytest.mark.parametrize("schedule", ["warmup_cosine", "one_cycle", "cosine_restarts"])
def test_nan_rolls_back_and_the_rate_stays_halved(tmp_path: Path, prepared: Prepared, schedule: str) -> None:
    rate = learning_rate(make(tmp_path / "x", prepared, schedule=schedule).settings, 24)
    job = make(tmp_path / "a", prepared, times(NAN, SPOILT, 0.75 * rate(SPOILT - 1)), schedule=schedule)
    fitted = fit(job)
    assert fitted.status == "finished"
    steps = rows(job, "steps.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 25))
    assert [row["lr"] for row in steps] == [rate(i) * (1.0 if i < 12 else 0.5) for i in range(24)]
    assert all(math.isfinite(row["loss"]) for row in steps)
    (event,) = rows(job, "events.jsonl")
    assert (event["kind"], event["step"], event["epoch"]) == ("rollback", SPOILT, 3)
    assert event["samples"] == window(job, SPOILT)
    assert "back to step 12, learning rate times 0.5" in event["what"]
    assert (meta(job)["rollbacks"], meta(job)["lr_factor"]) == (1, 0.5)


def test_what_was_before_the_rollback_leaves_no_trace(tmp_path: Path, prepared: Prepared, spoilt: Act) -> None:
    """Gradients, accumulation cursor, optimizer state, sums: all are those of the checkpoint."""
    job = make(tmp_path / "a", prepared, spoilt)
    fit(job)
    halved = make(tmp_path / "b", prepared)
    fit(halved)
    before = [row for row in rows(halved, "steps.jsonl") if row["step"] <= 12]
    assert rows(job, "steps.jsonl")[:12] == before
    thirteenth, wanted = rows(job, "steps.jsonl")[12], rows(halved, "steps.jsonl")[12]
    assert thirteenth["loss"] == wanted["loss"]  # The same weights on the same samples with the same dropout.
    assert thirteenth["grad_norm"] == wanted["grad_norm"]
    assert sum(map(sum, rows(job, "epochs.jsonl")[2]["train_confusion"])) == 46


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("save_every_steps", [None, 4])
def test_bit_exact_wherever_it_was_stopped(
    tmp_path: Path, prepared: Prepared, spoilt: Act, save_every_steps: int | None
) -> None:
    settings = {"save_every_steps": save_every_steps, "layers_every_steps": 100}
    unbroken = make(tmp_path / "unbroken", prepared, spoilt, **settings)
    fit(unbroken)

    def after(step: Step) -> bool:
        return step.lr < 0.6 * learning_rate(unbroken.settings, 24)(step.step - 1)

    stops = [
        [stop_in(3)], [stop_in(12)], [stop_in(14)], [stop_in(14), stop_in(13, after)], [stop_in(14, after)],
        [stop_in(14), stop_in(15, after), stop_in(20)], [stop_in(18, after)],
    ]  # fmt: skip
    for number, stop in enumerate(stops):
        job, fitted = stopped_and_resumed(
            lambda act, number=number: make(tmp_path / f"stopped{number}", prepared, spoilt, act, **settings), *stop
        )
        assert toy.result(job) == toy.result(unbroken), number
        assert len(fitted.lineage) == 1 + len(stop)
        assert all(segment["from_step"] <= segment["to_step"] for segment in fitted.lineage), number


@pytest.mark.parametrize("number", [13, 14, 16, 17, 19, 24])
@pytest.mark.parametrize("settings", [{}, {"save_every_epochs": 2}], ids=str)
def test_killed_at_any_step_after_a_rollback_it_goes_on(
    tmp_path: Path,
    prepared: Prepared,
    number: int,
    settings: dict[str, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also before the next save: the checkpoint of step 15 is newer than that of 12, to which step 17 goes back."""
    spoilt = times(NAN, 17, bound(make(tmp_path / "x", prepared), 17))
    unbroken = make(tmp_path / "unbroken", prepared, spoilt, **settings)
    fit(unbroken)
    rate = learning_rate(unbroken.settings, 24)
    kill = killed_in(number, lambda step: step.lr < 0.6 * rate(step.step - 1))
    with pytest.raises(Killed):
        fit(make(tmp_path / "killed", prepared, spoilt, kill, **settings))
    capsys.readouterr()
    again = make(tmp_path / "killed", prepared, spoilt, **settings)
    fit(again)
    said = capsys.readouterr().out
    assert "warning" not in said
    assert int(said.split("goes on after step ")[1].split()[0]) >= 12
    assert toy.result(again) == toy.result(unbroken)


def test_tries_are_bounded(tmp_path: Path, prepared: Prepared) -> None:
    found = []
    for every in (1, 5, 50):
        job = make(tmp_path / str(every), prepared, times(NAN, SPOILT), log_every_steps=every)
        fitted = fit(job)
        assert fitted.status == "stopped"
        assert "step 15" in fitted.reason
        assert fitted.best_epoch in (1, 2)
        assert all(torch.isfinite(tensor).all() for tensor in job.module.state_dict().values())
        assert [event["kind"] for event in rows(job, "events.jsonl")] == ["rollback"] * 2
        assert (meta(job)["rollbacks"], meta(job)["lr_factor"], meta(job)["status"]) == (2, 0.25, "stopped")
        assert [row["loss"] for row in rows(job, "steps.jsonl")][14:] == ["nan"]
        found.append(toy.result(job))
    assert found[0] == found[1] == found[2]


def test_infinite_counts_as_lost_too(tmp_path: Path, prepared: Prepared) -> None:
    job = make(tmp_path / "a", prepared, times(float("inf"), 2, 1e-9), recovery={"max_rollbacks": 0})
    assert (fit(job).status, rows(job, "steps.jsonl")[-1]["loss"]) == ("stopped", "inf")


OVERFLOWING = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None, "schedule": "constant"}


@pytest.mark.parametrize(("step", "found_at"), [(14, 15), (15, 15), (18, 18), (24, 24)])
def test_weights_that_a_step_spoilt_are_never_saved(
    tmp_path: Path, prepared: Prepared, step: int, found_at: int
) -> None:
    """Loss and gradient are finite, rate times gradient is not. Saves are due at 15 and 18; 24 is the last one."""
    job = make(
        tmp_path / "a", prepared, lambda _: 1e-27, times(1e42, step, 0.9e25),
        **OVERFLOWING, lr=1e25, save_every_steps=3, recovery={"max_rollbacks": 1},
    )  # fmt: skip
    fitted = fit(job)
    assert fitted.status == "finished"
    (event,) = rows(job, "events.jsonl")
    assert (event["kind"], event["step"], event["epoch"]) == ("rollback", found_at, (found_at - 1) // 6 + 1)
    assert event["samples"] == window(job, found_at)
    assert found_at != step or "weights that are not finite" in event["what"]
    for path in job.store.folder.glob("step-*.pt"):
        saved = torch.load(path, weights_only=True)["module"]
        assert all(torch.isfinite(tensor).all() for tensor in saved.values()), path.name


def test_weights_spoilt_for_good_are_neither_best_nor_saved(tmp_path: Path, prepared: Prepared) -> None:
    job = make(
        tmp_path / "a", prepared, lambda _: 1e-27, times(1e42, 18),
        **OVERFLOWING, lr=1e25, recovery={"max_rollbacks": 0},
    )  # fmt: skip
    fitted = fit(job)
    assert (fitted.status, fitted.reason) == ("stopped", "weights that are not finite at step 18")
    assert fitted.best_epoch in (1, 2)
    for path in job.store.folder.glob("step-*.pt"):
        assert all(torch.isfinite(one).all() for one in torch.load(path, weights_only=True)["module"].values())


def test_a_network_that_begins_with_nan(tmp_path: Path, prepared: Prepared) -> None:
    module = toy.network()
    with torch.no_grad():
        next(module.parameters()).fill_(NAN)
    with pytest.raises(BadParams, match="starting weights must be finite"):
        fit(toy.job(tmp_path, prepared, module))


def test_layers_are_recorded_around_an_anomaly(tmp_path: Path, prepared: Prepared, spoilt: Act) -> None:
    job = make(tmp_path / "a", prepared, spoilt, layers_every_steps=1000)
    fit(job)
    assert [row["step"] for row in rows(job, "layers.jsonl")] == list(range(13, 21))
    never = make(tmp_path / "b", prepared, spoilt, layers_every_steps=None)
    fit(never)
    assert rows(never, "layers.jsonl") == []
    assert toy.result(never)["weights"] == toy.result(job)["weights"]


STEEP = {"epochs": 1, "clip_norm": 1e-3, "recovery": {"clip_after_steps": 10}, "layers_every_steps": 1000}


@pytest.fixture
def long(tmp_path: Path) -> Prepared:
    """72 steps an epoch."""
    return toy.prepare(tmp_path / "long", train=72 * 8)


@pytest.mark.usefixtures("stoppable")
def test_clipping_is_switched_on_at_a_step_that_nothing_moves(tmp_path: Path, long: Prepared) -> None:
    found = []
    variants: list[tuple[dict[str, Any], list[Act]]] = [
        ({}, []), ({"log_every_steps": 1}, []), ({"log_every_steps": 7, "save_every_steps": 11}, []),
        ({}, [stop_in(5)]), ({}, [stop_in(12)]), ({}, [stop_in(50)]), ({"save_every_steps": 9}, [stop_in(60)]),
    ]  # fmt: skip
    for number, (settings, stops) in enumerate(variants):
        job, _ = stopped_and_resumed(
            lambda act, number=number, settings=settings: make(
                tmp_path / str(number), long, act, **STEEP, clip=False, **settings
            ),
            *stops,
        )
        found.append(toy.result(job))
        steps = rows(job, "steps.jsonl")
        assert [row["clipped"] for row in steps] == [False] * 50 + [True] * 22
        events = rows(job, "events.jsonl")
        assert [(event["kind"], event["step"]) for event in events] == [("clipping_switched_on", 10)]
        assert events[0]["samples"] == window(job, 10)
        assert [row["step"] for row in rows(job, "layers.jsonl")] == [51, 52, 53, 54, 55]
        assert meta(job)["clip_norm"] == 1e-3
    assert all(one == found[0] for one in found)


def test_where_it_clips_already_each_stretch_is_one_event(tmp_path: Path, long: Prepared) -> None:
    job = make(tmp_path / "a", long, times(1e-6, 30), **STEEP)
    fit(job)
    assert [(event["kind"], event["step"]) for event in rows(job, "events.jsonl")] == [
        ("steep_gradients", 10),
        ("steep_gradients", 40),
    ]
    assert [row["step"] for row in rows(job, "steps.jsonl") if not row["clipped"]] == [30]


def test_a_calm_step_begins_the_count_again(tmp_path: Path, long: Prepared) -> None:
    job = make(tmp_path / "a", long, times(1e-6, 8), times(1e-6, 17), **STEEP, clip=False)
    fit(job)
    assert rows(job, "events.jsonl")[0]["step"] == 27


def test_steep_steps_before_a_lost_loss_are_events_whatever_the_block(tmp_path: Path, prepared: Prepared) -> None:
    found = []
    for every in (1, 50):
        recovery = {"max_rollbacks": 1, "clip_after_steps": 3}
        job = make(
            tmp_path / str(every), prepared, times(NAN, 5), clip_norm=1e-3, recovery=recovery, log_every_steps=every
        )
        fit(job)
        assert [event["kind"] for event in rows(job, "events.jsonl")] == [
            "steep_gradients", "rollback", "steep_gradients",
        ]  # fmt: skip
        found.append(toy.result(job))
    assert found[0] == found[1]


def swinging(step: Step) -> float:
    """Up in odd epochs, down in even ones, farthest in the fourth."""
    return (-0.4, 0.05, -0.1, 1.5)[(step.epoch - 1) % 4]


SWINGING = {
    "epochs": 7, "optimizer": "sgd", "momentum": 0.0, "lr": 0.3, "schedule": "constant", "layers_every_steps": 1000,
}  # fmt: skip


@pytest.mark.usefixtures("stoppable")
def test_a_swinging_validation_loss_halves_the_rate(tmp_path: Path, prepared: Prepared) -> None:
    settings = {**SWINGING, "recovery": {"amplitude": {"epochs": 4, "share": 0.02}}}
    unbroken = make(tmp_path / "a", prepared, swinging, **settings)
    fit(unbroken)
    (event,) = rows(unbroken, "events.jsonl")
    assert (event["kind"], event["epoch"], event["step"]) == ("swinging_validation", 4, 24)
    assert [row["lr"] for row in rows(unbroken, "steps.jsonl")] == [0.3] * 24 + [0.15] * 18
    stopped, _ = stopped_and_resumed(
        lambda act: make(tmp_path / "b", prepared, swinging, act, **settings), stop_in(20), stop_in(26)
    )
    assert toy.result(stopped) == toy.result(unbroken)


@pytest.mark.parametrize("save_every_epochs", [1, 3])
def test_a_swinging_validation_loss_ends_the_training(
    tmp_path: Path, prepared: Prepared, save_every_epochs: int
) -> None:
    """The epoch that ends it is the best one: its weights are handed on."""
    recovery = {"amplitude": {"epochs": 4, "share": 0.02, "action": "stop"}}
    job = make(tmp_path / "a", prepared, swinging, **SWINGING, recovery=recovery, save_every_epochs=save_every_epochs)
    fitted = fit(job)
    assert (fitted.status, fitted.best_epoch) == ("stopped", 4)
    assert "the validation loss swings" in fitted.reason
    assert len(rows(job, "epochs.jsonl")) == 4
    assert rows(job, "epochs.jsonl")[3]["val_loss"] == pytest.approx(fitted.val.loss)


@pytest.mark.usefixtures("stoppable")
def test_plateau(tmp_path: Path, prepared: Prepared) -> None:
    settings = {
        "epochs": 5, "schedule": "reduce_on_plateau", "plateau": {"factor": 0.5, "patience": 2, "min_delta": 100.0},
    }  # fmt: skip
    unbroken = make(tmp_path / "a", prepared, **settings)
    fit(unbroken)
    assert [row["lr"] for row in rows(unbroken, "steps.jsonl")] == [0.01] * 18 + [0.005] * 12
    assert [(event["kind"], event["epoch"]) for event in rows(unbroken, "events.jsonl")] == [
        ("plateau", 3), ("plateau", 5),
    ]  # fmt: skip
    stopped, _ = stopped_and_resumed(lambda act: make(tmp_path / "b", prepared, act, **settings), stop_in(14))
    assert toy.result(stopped) == toy.result(unbroken)


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("monitor", ["val_loss", "val_accuracy"])
def test_early_stopping(tmp_path: Path, prepared: Prepared, monitor: str) -> None:
    settings = {"epochs": 9, "early_stopping": {"monitor": monitor, "patience": 2, "min_delta": 100.0}}
    unbroken = make(tmp_path / "a", prepared, **settings)
    fitted = fit(unbroken)
    assert (fitted.status, fitted.reason) == ("finished", f"early stopping: no better {monitor} for 2 epochs")
    assert len(rows(unbroken, "epochs.jsonl")) == 3
    assert [(event["kind"], event["epoch"]) for event in rows(unbroken, "events.jsonl")] == [("early_stopping", 3)]
    stopped, _ = stopped_and_resumed(
        lambda act: make(tmp_path / "b", prepared, act, **settings), stop_in(9), stop_in(18)
    )
    assert toy.result(stopped) == toy.result(unbroken)


class LostInValidation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = toy.network()

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values) if self.training else self.inner(values) * NAN


def test_nan_is_never_better(tmp_path: Path, prepared: Prepared) -> None:
    settings = {"epochs": 9, "early_stopping": {"patience": 3}}
    job = toy.job(tmp_path, prepared, LostInValidation(), settings=settings)
    fitted = fit(job)
    assert (fitted.status, fitted.best_epoch, len(rows(job, "epochs.jsonl"))) == ("finished", 0, 3)
