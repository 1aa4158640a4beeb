"""A training that is killed again and again must end with the very weights and history of one that nobody touched.

    python -m benchmarks.kill_sweep            100 kills
    python -m benchmarks.kill_sweep --quick    fewer, in under 50 s

A small network with dropout, BatchNorm, augmentation and a moving average is trained with two loader workers. Each
process that works on it gets a SIGKILL at a random moment (start, steps, saves, validation), and the next one goes on,
until one comes to the end; then the next training begins. The last line of output is one JSON object: `kills`, `exact`
(whether weights, optimizer state and all history files equal those of the unbroken run, every time),
`max_steps_lost` (most steps that a kill undid), `save_every_steps`, `trainings`, `seconds`, `quick`.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.config.fit import Fit
from stages.data.loaders import LoaderSettings
from stages.data.prepared import Prepared
from stages.models.preprocess import Preprocess
from stages.runtime import seeds
from stages.training.fit import fit
from stages.training.job import Job

ROOT = Path(__file__).parent.parent
FULL, QUICK = 100, 10
BEGUN = "begun"
"""A file that each process leaves at its first step."""

SHARE_AT_START = 0.2
"""Of the kills; the others come after the first step."""
SAVE_EVERY_STEPS = 4
STEP_S = 0.01
"""Each micro-batch takes at least so long, so that kills fall into steps as well as into saves."""

SETTINGS: dict[str, Any] = {
    "epochs": 3, "batch_size": 8, "lr": 0.01, "save_every_steps": SAVE_EVERY_STEPS, "log_every_steps": 1,
    "layers_every_steps": 5, "ema": {"decay": 0.9}, "augment": {"flip": True, "crop": 1},
}  # fmt: skip
CLASSES, TRAIN, VALIDATION, SIDE = 3, 86, 40, 6


def prepare(folder: Path) -> Prepared:
    """Images of noise over a class's own grey, as `prepare_data` would leave them."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    count = TRAIN + VALIDATION + CLASSES
    labels = np.arange(count, dtype=np.int64) % CLASSES
    noise = generator.integers(0, 160, size=(count, SIDE, SIDE, 1))
    np.save(folder / "samples.npy", (noise + 40 * labels[:, None, None, None]).astype(np.uint8))
    np.save(folder / "labels.npy", labels)
    bounds = {"train": (0, TRAIN), "val": (TRAIN, TRAIN + VALIDATION), "test": (TRAIN + VALIDATION, count)}
    bounds["calibration"] = (0, CLASSES)
    for name, (start, end) in bounds.items():
        np.save(folder / f"{name}.npy", np.arange(start, end, dtype=np.int64))
    info = {
        "kind": "array", "hash": "0", "shape": [SIDE, SIDE, 1], "dtype": "uint8", "classes": ["a", "b", "c"],
        "mean": [0.5], "std": [0.5], "scale": 255.0,
        "splits": {name: end - start for name, (start, end) in bounds.items()},
        "counts": {name: np.bincount(labels[s:e], minlength=CLASSES).tolist() for name, (s, e) in bounds.items()},
        "dropped": {}, "duplicates": {}, "root": None, "resize": None, "grayscale": False,
    }  # fmt: skip
    (folder / "info.json").write_text(json.dumps(info))
    return Prepared.open(folder)


def network() -> nn.Module:
    """Dropout and BatchNorm would show a random state or statistics that were not put back."""
    seeds.apply(0, 1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, CLASSES)
    )


def train(data: Path, out: Path) -> None:
    """One process's part: trains from the newest checkpoint to the end, then leaves the result in `out`."""

    def slow(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        (out / BEGUN).touch()
        time.sleep(STEP_S)
        return F.cross_entropy(logits, labels)

    prepared = Prepared.open(data)
    info = prepared.info
    job = Job(
        name="sweep",
        module=network(),
        preprocess=Preprocess(info.mean, info.std, info.scale, info.shape),
        prepared=prepared,
        settings=Fit(**SETTINGS),
        micro_batch=4,
        seed=0,
        store=Store("sweep", "f" * 64, "c" * 64),
        history=out / "history",
        loss=slow,
        loader=LoaderSettings(workers=2),
        device=torch.device("cpu"),
    )
    fit(job)
    last = job.store.latest()
    assert last is not None
    result = {path.name: path.read_text() for path in sorted(job.history.iterdir())}
    result |= {"weights": module_hash(job.module), "state": _tensors_hash(last.payload)}
    (out / "result.json").write_text(json.dumps(result))


def _tensors_hash(payload: dict[str, Any]) -> str:
    """Of all that the last checkpoint holds (weights, optimizer, average, position), but for who made it when."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(value.contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    add({name: part for name, part in payload.items() if name != "meta"})
    return found.hexdigest()


def _zygote() -> None:
    """For each line of JSON on stdin (data, out, state) forks a process that trains; says its id, then how it ended.

    So a process costs no import of torch, and is still one of its own, with its workers in its own group.
    """
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # The first optimizer imports seconds' worth of torch.
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            _child(asked)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _child(asked: dict[str, str]) -> None:
    os.environ["SHIPWAY_STATE"] = asked["state"]
    out = Path(asked["out"])
    with (out / "log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            train(Path(asked["data"]), out)
        except BaseException:
            traceback.print_exc()
            log.flush()
            os._exit(1)
    os._exit(0)


class _Training:
    """Processes that work on one training in turn."""

    def __init__(self, zygote: "subprocess.Popen[str]", data: Path, folder: Path) -> None:
        self._zygote, self._data, self._folder = zygote, data, folder
        folder.mkdir(parents=True)

    def run(self, kill_after_s: float | None = None, from_first_step: bool = True) -> bool:
        """A process goes on, until its end, or until it is killed so long after its first step (or else its start).

        True when it came to the end.
        """
        assert self._zygote.stdin is not None
        begun = self._folder / BEGUN
        begun.unlink(missing_ok=True)
        asked = {"data": str(self._data), "out": str(self._folder), "state": str(self._folder / "state")}
        print(json.dumps(asked), file=self._zygote.stdin, flush=True)
        process = int(self._reply())
        if kill_after_s is not None:
            while from_first_step and not begun.exists() and not (self._folder / "result.json").exists():
                time.sleep(0.001)
            time.sleep(kill_after_s)
            with suppress(ProcessLookupError):  # It has come to its end.
                os.killpg(process, signal.SIGKILL)
        status = int(self._reply())
        if status not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the training failed: {(self._folder / 'log').read_text()[-2000:]}")
        return status == 0

    def time(self) -> tuple[float, float]:
        """Runs to the end; seconds until the first step, and from there on."""
        started = time.perf_counter()
        watch = threading.Thread(target=self.run)
        watch.start()
        while not (self._folder / BEGUN).exists() and watch.is_alive():
            time.sleep(0.001)
        begun = time.perf_counter()
        watch.join()
        return begun - started, time.perf_counter() - begun

    def result(self) -> dict[str, Any]:
        """What the process that came to the end left."""
        return dict(json.loads((self._folder / "result.json").read_text()))

    def steps_lost(self) -> int:
        """Steps that were done less those that the newest whole checkpoint holds: to ask after a kill."""
        history = next(self._folder.glob("state/checkpoints/sweep/*/*/history/steps.jsonl"), None)
        if history is None:
            return 0
        rows = history.read_text().splitlines(keepends=True)
        done = [json.loads(row)["step"] for row in rows if row.endswith("\n")]
        saved = [int(path.stem.removeprefix("step-")) for path in history.parent.parent.glob("step-*.json")]
        return max(0, max(done, default=0) - max(saved, default=0))

    def _reply(self) -> str:
        assert self._zygote.stdout is not None
        line = self._zygote.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts the trainings ended")
        return line


def _moment(moments: random.Random, start_s: float, steps_s: float) -> tuple[float, bool]:
    at_start = moments.random() < SHARE_AT_START
    return moments.uniform(0.0, start_s if at_start else 0.6 * steps_s), not at_start


def sweep(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """So many kills at moments that `seed` draws; works in `folder`, which must be empty.

    Returns `kills`, `exact`, `max_steps_lost`, `save_every_steps`, `trainings` and `different` (names of what was not
    equal). Raises `RuntimeError` when a training fails.
    """
    moments = random.Random(seed)
    prepare(folder / "data")
    command = [sys.executable, "-m", "benchmarks.kill_sweep", "--zygote"]
    done, lost, trainings, different = 0, 0, 0, set()
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zygote:
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        zygote.stdout.readline()  # torch is imported.
        unbroken = _Training(zygote, folder / "data", folder / "unbroken")
        start_s, steps_s = unbroken.time()
        expected = unbroken.result()
        while done < kills:
            training = _Training(zygote, folder / "data", folder / str(trainings))
            trainings += 1
            while not training.run(*_moment(moments, start_s, steps_s) if done < kills else ()):
                done += 1
                lost = max(lost, training.steps_lost())
            found = training.result()
            different |= {name for name in expected if found.get(name) != expected[name]}
        zygote.stdin.close()
    return {
        "kills": done, "exact": not different, "max_steps_lost": lost, "save_every_steps": SAVE_EVERY_STEPS,
        "trainings": trainings, "different": sorted(different),
    }  # fmt: skip


def main() -> None:
    """Runs the benchmark and prints its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer kills, in under 50 s")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    parser.add_argument("--zygote", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.zygote:
        _zygote()
        return
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        found = sweep(QUICK if arguments.quick else FULL, arguments.seed, Path(temporary))
    print(json.dumps({**found, "seconds": round(time.perf_counter() - started, 1), "quick": arguments.quick}))


if __name__ == "__main__":
    main()
