"""A small training: prepared data in a folder, a network with dropout and BatchNorm, a job. Also as a process:

`python -m tests.unit.training.toy FOLDER DELAY_S WORKERS` trains, and ends as a stage does (0; 75 when stopped).
"""

import json
import sys
import time
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
from stages.runtime import seeds, stopping
from stages.runtime.exits import StageError
from stages.training.fit import Job, fit

CLASSES = 3


def prepare(folder: Path, *, train: int = 46, val: int = 20, shape: tuple[int, ...] = (6,), seed: int = 0) -> Prepared:
    """Prepared data whose classes can be told apart, as `prepare_data` would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    count = train + val + 4
    labels = np.arange(count, dtype=np.int64) % CLASSES
    if len(shape) == 1:
        samples = generator.normal(size=(count, *shape)) + labels[:, None]
        stored, scale = samples.astype(np.float32), 1.0
    else:
        samples = generator.integers(0, 60, size=(count, *shape)) + 80 * labels[:, None, None, None]
        stored, scale = samples.astype(np.uint8), 255.0
    np.save(folder / "samples.npy", stored)
    np.save(folder / "labels.npy", labels)
    bounds = {"train": (0, train), "val": (train, train + val), "test": (train + val, count), "calibration": (0, 2)}
    for name, (start, end) in bounds.items():
        np.save(folder / f"{name}.npy", np.arange(start, end, dtype=np.int64))
    channels = shape[-1]
    info = {
        "kind": "array", "hash": f"{seed}-{train}-{val}-{shape}", "shape": list(shape), "dtype": stored.dtype.name,
        "classes": ["a", "b", "c"], "mean": [0.5] * channels, "std": [0.5] * channels, "scale": scale,
        "splits": {name: end - start for name, (start, end) in bounds.items()},
        "counts": {name: np.bincount(labels[s:e], minlength=CLASSES).tolist() for name, (s, e) in bounds.items()},
        "dropped": {}, "duplicates": {}, "root": None, "resize": None, "grayscale": False,
    }  # fmt: skip
    (folder / "info.json").write_text(json.dumps(info))
    return Prepared.open(folder)


def network(inputs: int = 6) -> nn.Module:
    """Dropout and BatchNorm: both would show a random state or statistics that were not put back."""
    seeds.apply(0, 1)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, CLASSES),
    )


def job(folder: Path, prepared: Prepared, module: nn.Module | None = None, **changes: Any) -> Job:
    """A job over 4 epochs of 6 steps (46 samples, 8 a step, two micro-batches each); its history in `folder`."""
    given = {"epochs": 4, "batch_size": 8, "lr": 0.01, "recovery": {"max_rollbacks": 0}, **changes.pop("settings", {})}
    settings = Fit(**given)
    info = prepared.info
    made = {
        "name": "toy",
        "module": network() if module is None else module,
        "preprocess": Preprocess(info.mean, info.std, info.scale, info.shape),
        "prepared": prepared,
        "settings": settings,
        "micro_batch": 4,
        "seed": 0,
        "store": Store("toy", "f" * 64, "c" * 64),
        "history": folder / "history",
        "loader": LoaderSettings(),
        "device": torch.device("cpu"),
    }
    return Job(**{**made, **changes})


def result(done: Job) -> dict[str, Any]:
    """All that must be equal between an unbroken and a resumed training."""
    history = {path.name: path.read_text() for path in sorted(done.history.iterdir())}
    return {"weights": module_hash(done.module), **history}


def main(folder: Path, delay_s: float, workers: int) -> None:
    """Trains in `folder`; every step takes at least the delay."""
    stopping.install()

    def slow(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        time.sleep(delay_s)
        return F.cross_entropy(logits, labels)

    toy = job(folder, Prepared.open(folder / "data"), loss=slow, loader=LoaderSettings(workers=workers))
    try:
        fit(toy)
    except StageError as error:
        print(error.sentence, flush=True)
        sys.exit(int(error.code))
    (folder / "result.json").write_text(json.dumps(result(toy)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
