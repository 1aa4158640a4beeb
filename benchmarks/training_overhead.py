"""What our training loop costs over a bare one, and over Lightning and Accelerate; and what a save costs it.

    python -m benchmarks.training_overhead
    python -m benchmarks.training_overhead --quick    fewer rounds: under 50 s on two cores

Needs the extra `bench` (`pip install -e '.[bench]' -c constraints.txt`), and Fashion-MNIST (Debian: `apt-get install
dataset-fashion-mnist`, or --fashion-mnist FOLDER).

A small CNN on Fashion-MNIST and an MLP on the digits (0.5 ms a step) are trained by `fit` with all that it records (the
defaults), by a bare loop, by Lightning and by Accelerate: see `benchmarks/training_loops.py`. The four train side by
side, from the same weights on the same batches: in each round every one of them makes 50 steps, the CNN's in ten turns
of 5, in random order. A figure is the median over the rounds of the ratio within a round, since the speed of this
machine drifts. A turn begins and ends inside the loss function, within one epoch: a round holds 50 whole steps, with
one writing of our loop's records and one of its layers, and neither start-up nor validation nor a save. One thread by
default: with two on two cores, other processes are measured too. All four run with torch's deterministic operations, as
a stage does, and in one heap, which gives no memory back (`one_heap`, with glibc).

The last line of output is one JSON object: `cnn_ratio`, `mlp_ratio` (ours over bare), `vs_lightning`, `vs_accelerate`
(ours over theirs on the MLP), `vs_lightning_cnn`, `vs_accelerate_cnn`; `mlp_cpu_ratio`, `cnn_cpu_ratio` (of processor
time, which other processes disturb less); `save_stall_ratio` (how long the loop stands still for a save in the
background, over the same save waited for; of the pipeline's default network); the milliseconds behind them, `rounds`,
`threads`, `load` (before, after), `quick`.
"""

import argparse
import copy
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from benchmarks.training_loops import CPU, LOOPS, Case, Loop, loss_of
from benchmarks.turns import Spent, Turns, keep_memory, side_by_side
from stages.checkpoints.store import Store
from stages.data.prepared import SPLITS, Info, Prepared
from stages.data.sources.digits import open_digits
from stages.data.sources.fashion_mnist import open_fashion_mnist
from stages.data.statistics import moments
from stages.models.mlp import mlp
from stages.models.resnet_cifar import resnet_cifar
from stages.runtime import seeds
from stages.training.fit import Job
from stages.training.run import Run

ROOT = Path(__file__).parent.parent
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
BATCH = 64
ROUNDS, QUICK_ROUNDS = {"mlp": 300, "cnn": 40, "save": 15}, {"mlp": 35, "cnn": 4, "save": 5}
ROUND = 50
"""Steps of a round; what `log_every_steps` and `layers_every_steps` are by default."""

TURN = {"mlp": 50, "cnn": 5}
"""Steps without a change: some tens of milliseconds."""

WARM_UP = {"mlp": 8, "cnn": 1}
"""Rounds: caches fill, and the starting weights are saved in the background."""


def prepare(folder: Path, samples: npt.NDArray[Any], labels: npt.NDArray[Any], classes: int, steps: int) -> Prepared:
    """Prepared data with an epoch of `steps` batches: samples come several times where there are too few."""
    folder.mkdir(parents=True)
    count, few = len(samples), np.arange(BATCH, dtype=np.int64)
    splits = dict.fromkeys(SPLITS, few) | {"train": np.arange(steps * BATCH, dtype=np.int64) % count}
    mean, std = moments(samples, np.arange(count))
    info = Info(
        kind="array", hash="overhead", shape=samples.shape[1:], dtype=samples.dtype.name,
        classes=tuple(map(str, range(classes))), mean=mean, std=std, scale=255.0 if samples.dtype == np.uint8 else 1.0,
        splits={name: len(rows) for name, rows in splits.items()},
        counts={name: np.bincount(labels[rows], minlength=classes).tolist() for name, rows in splits.items()},
        dropped={}, duplicates={},
    )  # fmt: skip
    (folder / "info.json").write_text(json.dumps(info.to_json()))
    for name, array in {**splits, "samples": samples, "labels": labels.astype(np.int64)}.items():
        np.save(folder / f"{name}.npy", array)
    return Prepared.open(folder)


def small_cnn() -> nn.Module:
    """Two convolutions with BatchNorm and one linear layer, for (N, 1, 28, 28)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


def cnn_case(folder: Path, fashion_mnist: Path, rounds: int) -> Case:
    """The small CNN on Fashion-MNIST."""
    if not fashion_mnist.is_dir():
        raise SystemExit(f"{fashion_mnist} is missing: apt-get install dataset-fashion-mnist, or name its folder")
    block, steps = open_fashion_mnist(fashion_mnist).blocks[0], total_steps("cnn", rounds)
    return Case("cnn", prepare(folder, block.samples, block.labels, 10, steps), small_cnn(), BATCH, steps)


def mlp_case(folder: Path, rounds: int) -> Case:
    """An MLP on the digits whose bare step takes about 0.5 ms on a quiet core, hardly more than without arithmetic."""
    block, steps = open_digits(ROOT / "stages/data/digits.npz").blocks[0], total_steps("mlp", rounds)
    prepared = prepare(folder, block.samples, block.labels, 10, steps)
    return Case("mlp", prepared, mlp(prepared.info.shape, 10, hidden=(64,)), BATCH, steps)


def total_steps(name: str, rounds: int) -> int:
    """Of the one epoch."""
    return (WARM_UP[name] + rounds) * ROUND + 1


def measure(case: Case, rounds: int, folder: Path) -> list[dict[str, Spent]]:
    """What each loop spent in each round."""

    def started(loop: Loop) -> Callable[[Turns], None]:
        return lambda turns: loop(case, copy.deepcopy(case.module), loss_of(turns), folder / case.name)

    loops = {name: started(loop) for name, loop in LOOPS.items()}
    with _silence():
        length = TURN[case.name]
        return side_by_side(loops, length=length, turns=ROUND // length, warm_up=WARM_UP[case.name], rounds=rounds)


def compare(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """The figures of one case."""
    taken = measure(case, rounds, folder)

    def ratio(other: str, clock: str = "wall") -> float:
        return round(statistics.median(getattr(t["ours"], clock) / getattr(t[other], clock) for t in taken), 4)

    def step_ms(clock: str) -> dict[str, float]:
        return {n: round(statistics.median(getattr(t[n], clock) for t in taken) / ROUND * 1000, 4) for n in LOOPS}

    suffix = "" if case.name == "mlp" else f"_{case.name}"
    return {
        f"{case.name}_ratio": ratio("bare"),
        f"vs_lightning{suffix}": ratio("lightning"),
        f"vs_accelerate{suffix}": ratio("accelerate"),
        f"{case.name}_cpu_ratio": ratio("bare", "processor"),
        f"{case.name}_step_ms": step_ms("wall"),
        f"{case.name}_step_cpu_ms": step_ms("processor"),
    }


def save_stall(case: Case, module: nn.Module, repeats: int, folder: Path) -> dict[str, float]:
    """How long `Run.save` holds the loop up, in the background and waited for, with AdamW's state."""
    store = Store("stall", "f" * 64, "c" * 64, reuse_finished=False)
    job = Job(
        "stall", module, case.preprocess(), case.prepared, case.settings, BATCH, 0, store, folder / "stall", device=CPU
    )
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with _silence(), store.locked():
        run = Run.start(job)
        for parameter in module.parameters():  # So that the optimizer has moments to save.
            parameter.grad = parameter.detach().clone()
        run.parts.optimizer.step()
        run.parts.optimizer.zero_grad(set_to_none=True)
        for wait in [True, False] * (repeats + 1):
            run.step += 1
            started = time.perf_counter()
            run.save(wait=wait)
            seconds[wait].append(time.perf_counter() - started)
            run.saver.wait()
    pairs = list(zip(seconds[False], seconds[True], strict=True))[1:]
    return {
        "save_stall_ratio": round(statistics.median(stall / whole for stall, whole in pairs), 4),
        "save_stall_ms": round(statistics.median(stall for stall, _ in pairs) * 1000, 2),
        "save_waited_ms": round(statistics.median(whole for _, whole in pairs) * 1000, 2),
    }


def _hush_lightning() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # The batches lie in memory.
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.* is deprecated")  # Its own affair.


@contextmanager
def _silence() -> Iterator[None]:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def main() -> None:
    """Runs the benchmark and prints its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a reduced, honest run in under 50 s")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fashion-mnist", type=Path, default=FASHION_MNIST, help="folder of the IDX files")
    given = parser.parse_args()
    rounds = QUICK_ROUNDS if given.quick else ROUNDS
    load = [os.getloadavg()[0]]
    seeds.apply(0, given.threads)
    _hush_lightning()
    kept = keep_memory()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["SHIPWAY_STATE"] = str(folder / "state")
        cnn = cnn_case(folder / "cnn-data", given.fashion_mnist, rounds["cnn"])
        figures = compare(mlp_case(folder / "mlp-data", rounds["mlp"]), rounds["mlp"], folder)
        figures |= compare(cnn, rounds["cnn"], folder)
        default = resnet_cifar(cnn.prepared.info.shape, 10, depth=14, width=48)
        figures |= save_stall(cnn, default, rounds["save"], folder)
    load.append(os.getloadavg()[0])
    about = {"one_heap": kept, "rounds": rounds, "threads": given.threads, "load": [round(one, 2) for one in load]}
    print(json.dumps({**figures, **about, "quick": given.quick}))


if __name__ == "__main__":
    main()
