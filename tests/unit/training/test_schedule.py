"""Learning rates at every step against closed forms and torch's schedulers; what watches the validation values."""

import doctest
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from stages.config.fit import EarlyStopping, Fit, Plateau
from stages.training import schedule
from stages.training.schedule import (
    PlateauWatch,
    Watched,
    learning_rate,
    should_stop,
    warmup_cosine,
    warmup_steps,
    watch,
    watch_monitor,
)

ALL: list[dict[str, Any]] = [
    {"schedule": "warmup_cosine"},
    {"schedule": "warmup_cosine", "warmup_share": 0.0},
    {"schedule": "cosine"},
    {"schedule": "cosine_restarts"},
    {"schedule": "cosine_restarts", "cycles": 7},
    {"schedule": "warmup_linear"},
    {"schedule": "warmup_linear", "warmup_share": 0.99},
    {"schedule": "one_cycle"},
    {"schedule": "one_cycle", "warmup_share": 0.0},
    {"schedule": "one_cycle", "warmup_share": 0.99},
    {"schedule": "constant"},
    {"schedule": "reduce_on_plateau"},
]


def rates(total: int, lr: float = 0.4, **settings: Any) -> list[float]:
    rate = learning_rate(Fit(lr=lr, **settings), total)
    return [rate(step) for step in range(total)]


def torchs(make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], total: int, lr: float) -> list[float]:
    """The rates of torch's scheduler before each of the steps."""
    made = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=lr)
    scheduler = make(made)
    seen = []
    for _ in range(total):
        seen.append(scheduler.get_last_lr()[0])
        made.step()
        if len(seen) < total:  # OneCycleLR has no rate beyond its last step.
            scheduler.step()
    return seen


def test_docstring_examples() -> None:
    outcome = doctest.testmod(schedule)
    assert outcome.attempted > 5
    assert outcome.failed == 0


def test_warmup_is_linear_and_reaches_the_peak() -> None:
    seen = rates(100, schedule="warmup_cosine")
    assert seen[:10] == pytest.approx([0.04 * (i + 1) for i in range(10)])
    assert seen[10] == 0.4 == max(seen)


def test_warmup_cosine_is_the_formula_bit_for_bit() -> None:
    assert rates(37, schedule="warmup_cosine", warmup_share=0.2) == [
        0.4 * (step + 1) / 7 if step < 7 else 0.4 * 0.5 * (1.0 + math.cos(math.pi * ((step - 7) / 30)))
        for step in range(37)
    ]


def test_cosine_matches_torch() -> None:
    theirs = torchs(lambda made: lr_scheduler.CosineAnnealingLR(made, T_max=50), 50, 0.3)
    assert rates(50, 0.3, schedule="cosine") == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert rates(50, 0.3, schedule="cosine")[25] == pytest.approx(0.15)


def test_cosine_ends_near_zero_and_falls() -> None:
    seen = [warmup_cosine(step, 30, 3, 1.0) for step in range(3, 30)]
    assert seen == sorted(seen, reverse=True)
    assert 0.0 < seen[-1] < 0.01


def test_restarts_match_torch() -> None:
    theirs = torchs(lambda made: lr_scheduler.CosineAnnealingWarmRestarts(made, T_0=20), 60, 0.3)
    assert rates(60, 0.3, schedule="cosine_restarts") == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("total", "cycles"), [(60, 3), (61, 3), (62, 3), (10, 4), (23, 7), (7, 7)])
def test_every_cycle_starts_at_the_peak_and_they_differ_by_a_step_at_most(total: int, cycles: int) -> None:
    seen = rates(total, schedule="cosine_restarts", cycles=cycles)
    starts = [step for step, rate in enumerate(seen) if rate == 0.4]
    lengths = [after - before for before, after in zip(starts, [*starts[1:], total], strict=True)]
    assert len(starts) == cycles
    assert max(lengths) - min(lengths) <= 1
    for start, length in zip(starts, lengths, strict=True):
        assert seen[start : start + length] == rates(length, schedule="cosine")


def test_warmup_linear_matches_torch() -> None:
    seen = rates(50, 0.3, schedule="warmup_linear", warmup_share=0.2)
    theirs = torchs(lambda made: lr_scheduler.LinearLR(made, start_factor=1.0, end_factor=0.0, total_iters=40), 40, 0.3)
    assert seen[:10] == pytest.approx([0.03 * (i + 1) for i in range(10)])
    assert seen[10] == 0.3
    assert seen[10:] == pytest.approx(theirs, rel=1e-9)
    assert seen[-1] == pytest.approx(0.3 / 40)


@pytest.mark.parametrize(("total", "share"), [(100, None), (50, 0.5), (20, 0.1), (10, 0.9)])
def test_one_cycle_matches_torch(total: int, share: float | None) -> None:
    pct = 0.3 if share is None else share
    theirs = torchs(
        lambda made: lr_scheduler.OneCycleLR(
            made, 0.3, total_steps=total, pct_start=pct, div_factor=25, final_div_factor=1e4 / 25, cycle_momentum=False
        ),
        total,
        0.3,
    )
    assert rates(total, 0.3, schedule="one_cycle", warmup_share=share) == pytest.approx(theirs, rel=1e-9)


def test_one_cycle_corners() -> None:
    seen = rates(100, schedule="one_cycle")
    assert seen[0] == pytest.approx(0.4 / 25)
    assert seen[29] == max(seen) == 0.4
    assert seen[-1] == pytest.approx(0.4 / 1e4)


@pytest.mark.parametrize("name", ["constant", "reduce_on_plateau"])
def test_constant(name: str) -> None:
    assert rates(9, schedule=name) == [0.4] * 9


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_every_total_gives_positive_rates_up_to_the_peak(settings: dict[str, Any]) -> None:
    for total in (*range(1, 60), 997):
        seen = rates(total, **settings)
        assert all(rate > 0.0 for rate in seen), total
        assert max(seen) == pytest.approx(0.4, rel=1e-12), total


@pytest.mark.parametrize("settings", ALL, ids=str)
def test_bit_equal_at_any_step_in_any_order(settings: dict[str, Any]) -> None:
    expected = rates(101, **settings)
    order = list(range(101)) * 2
    random.Random(0).shuffle(order)
    again = learning_rate(Fit(lr=0.4, **settings), 101)
    assert [again(step) for step in order] == [expected[step] for step in order]


def test_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        learning_rate(Fit(), 0)


@pytest.mark.parametrize(("total", "share", "steps"), [(300, 0.1, 30), (1, 0.9, 0), (2, 0.99, 1), (10, 0.0, 0)])
def test_warmup_leaves_a_step(total: int, share: float, steps: int) -> None:
    assert warmup_steps(total, share) == steps
    assert math.isfinite(warmup_cosine(total - 1, total, steps, 1.0))


@pytest.mark.parametrize("patience", [1, 3])
def test_plateaus_match_torch(patience: int) -> None:
    draw = random.Random(1)
    losses = [1.0 / (1 + epoch // 4) + draw.uniform(0, 0.3) for epoch in range(40)]
    made = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    theirs = lr_scheduler.ReduceLROnPlateau(
        made, factor=0.5, patience=patience - 1, threshold=0.05, threshold_mode="abs", eps=0.0
    )
    ours, state, rate = PlateauWatch(Plateau(factor=0.5, patience=patience, min_delta=0.05)), Watched(), 1.0
    falls = 0
    for loss in losses:
        theirs.step(loss)
        state, factor = ours.observe(state, loss)
        rate *= factor
        falls += factor != 1.0
        assert rate == made.param_groups[0]["lr"]
    assert falls >= 3


def test_a_plateau_is_seen_after_a_resume_as_without() -> None:
    plateaus = PlateauWatch(Plateau(patience=3))
    losses = [1.0, 0.9, 0.95, 0.9, 0.91, 0.8, 0.8, float("nan"), 0.85, 0.7]
    unbroken, seen = Watched(), []
    resumed = Watched()
    for loss in losses:
        unbroken, factor = plateaus.observe(unbroken, loss)
        resumed, again = plateaus.observe(Watched(**json.loads(json.dumps(asdict(resumed)))), loss)
        assert (unbroken, factor) == (resumed, again)
        seen.append(factor)
    assert seen == [1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("higher_is_better", [False, True])
def test_what_is_not_finite_is_never_better(value: float, higher_is_better: bool) -> None:
    assert watch(Watched(), value, min_delta=0.0, higher_is_better=higher_is_better) == Watched(None, 1)
    assert watch(Watched(0.5, 2), value, min_delta=0.0, higher_is_better=higher_is_better) == Watched(0.5, 3)


def test_min_delta_must_be_exceeded() -> None:
    assert watch(Watched(0.5), 0.25, min_delta=0.25, higher_is_better=False) == Watched(0.5, 1)
    assert watch(Watched(0.5), 0.125, min_delta=0.25, higher_is_better=False) == Watched(0.125, 0)
    assert watch(Watched(0.5), 0.5, min_delta=0.0, higher_is_better=True) == Watched(0.5, 1)
    assert watch(Watched(0.5), 0.75, min_delta=0.125, higher_is_better=True) == Watched(0.75, 0)


@pytest.mark.parametrize(
    ("monitor", "stops_at"),
    [("val_loss", 4), ("val_accuracy", 5)],  # Best loss in epoch 2, best accuracy in epoch 3; patience 2.
)
def test_early_stopping_watches_what_it_should(monitor: Any, stops_at: int) -> None:
    settings = EarlyStopping(monitor=monitor, patience=2)
    epochs = [(1.0, 0.5), (0.8, 0.6), (0.9, 0.7), (math.nan, 0.65), (0.8, 0.7), (0.9, 0.6)]
    state, stops = Watched(), []
    for loss, accuracy in epochs:
        state = watch_monitor(state, settings, loss, accuracy)
        stops.append(should_stop(state, settings.patience))
    assert stops.index(True) + 1 == stops_at
