"""The benchmark compares like with like: its loops train the same thing, turn by turn."""

import copy
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import training_overhead
from benchmarks.training_loops import LOOPS, Case, loss_of
from benchmarks.turns import Turns, side_by_side
from stages.models.mlp import mlp
from stages.runtime import seeds

STEPS = 7


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path / "state"))
    seeds.apply(0, 1)
    generator = np.random.default_rng(0)
    labels = np.arange(300) % 3
    samples = (generator.normal(size=(300, 6)) + labels[:, None]).astype(np.float32)
    prepared = training_overhead.prepare(tmp_path / "data", samples, labels, 3, STEPS)
    return Case("mlp", prepared, mlp((6,), 3, hidden=(8,)), training_overhead.BATCH, STEPS)


def _trained(case: Case, name: str, folder: Path) -> list[torch.Tensor]:
    """The weights after the epoch, which the loop made in turns of its own."""
    module = copy.deepcopy(case.module)

    def loop(turns: Turns) -> None:
        LOOPS[name](case, module, loss_of(turns), folder)

    side_by_side({name: loop}, length=3, warm_up=0, rounds=2)
    return list(module.parameters())


def test_ours_and_the_bare_loop_end_with_the_same_bits(case: Case, tmp_path: Path) -> None:
    ours, bare = (_trained(case, name, tmp_path / name) for name in ("ours", "bare"))
    assert not torch.equal(ours[0], next(case.module.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(ours, bare, strict=True))


@pytest.mark.filterwarnings("ignore")  # What the libraries warn of among themselves.
@pytest.mark.parametrize("name", ["lightning", "accelerate"])
def test_the_peers_train_the_same(case: Case, tmp_path: Path, name: str) -> None:
    pytest.importorskip(name, reason="the extra `bench` is not installed")
    theirs, bare = _trained(case, name, tmp_path / name), _trained(case, "bare", tmp_path)
    for one, other in zip(theirs, bare, strict=True):  # LambdaLR multiplies the peak by a rounded factor.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_one_loop_runs_at_a_time_and_each_gets_its_turns() -> None:
    running, seen, lock = [], [], threading.Lock()

    def loop(name: str) -> Callable[[Turns], None]:
        def steps(turns: Turns) -> None:
            for step in range(3 * 4 + 1):
                turns.step()
                assert lock.acquire(blocking=False), "two loops ran at once"
                running.append(name)
                seen.append((name, step))
                lock.release()

        return steps

    taken = side_by_side({"a": loop("a"), "b": loop("b")}, length=4, turns=1, warm_up=1, rounds=2)
    assert [set(spent) for spent in taken] == [{"a", "b"}] * 2
    assert all(one.wall > 0 for spent in taken for one in spent.values())
    assert running.count("a") == running.count("b") == 13
    turns = ["".join(running[start : start + 4]) for start in range(0, 24, 4)]
    assert set(turns) == {"aaaa", "bbbb"}


def test_a_round_is_the_sum_of_its_turns() -> None:
    def loop(turns: Turns) -> None:
        for _ in range(2 * 3 * 2 + 1):
            turns.step()
            deadline = time.perf_counter() + 0.002
            while time.perf_counter() < deadline:
                pass

    taken = side_by_side({"busy": loop}, length=2, turns=3, warm_up=0, rounds=2)
    assert len(taken) == 2
    assert all(spent["busy"].wall >= 6 * 0.002 for spent in taken)  # Each of 6 steps takes no less.


def test_what_a_loop_raises_comes_out_and_ends_the_others() -> None:
    def good(turns: Turns) -> None:
        for _ in range(9):
            turns.step()

    def bad(turns: Turns) -> None:
        turns.step()
        raise ValueError("broken")

    before = threading.active_count()
    with pytest.raises(ValueError, match="broken"):
        side_by_side({"good": good, "bad": bad}, length=4, warm_up=0, rounds=2)
    assert threading.active_count() == before


def test_a_loop_that_ends_early_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="ended before its last turn"):
        side_by_side({"short": lambda turns: turns.step()}, length=4, warm_up=0, rounds=2)


def test_both_kinds_of_save_are_timed(case: Case, tmp_path: Path) -> None:
    figures = training_overhead.save_stall(case, case.module, 3, tmp_path)
    assert all(figures[name] > 0 for name in ("save_stall_ratio", "save_stall_ms", "save_waited_ms"))
    saved = sorted({path.name for path in (tmp_path / "state").rglob("step-*.pt")})
    assert saved == [f"step-{step:09d}.pt" for step in (0, 6, 7, 8)]  # All 2 x 4 wrote one; 0 is the best so far.
    json.dumps(figures)


def test_prepared_data_is_as_long_as_it_must_be(case: Case) -> None:
    assert len(case.prepared.indices("train")) == STEPS * training_overhead.BATCH
    assert isinstance(case.module, nn.Sequential)
