"""More of resuming: which samples remain, augmentation, schedules, a large data set, memory."""

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from stages.checkpoints.files import Saved
from stages.checkpoints.store import Store
from stages.config.augment import Augment
from stages.data import prepared as prepared_module
from stages.data.loaders import LoaderSettings
from stages.data.prepared import Prepared
from stages.runtime import stopping
from stages.runtime.exits import Stopped
from stages.training.fit import fit
from stages.training.job import Job
from tests.unit.training import toy
from tests.unit.training.acting import Act, loss_that, rows, stop_in, stopped_and_resumed, window


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_remaining_samples_are_those_of_the_unbroken_run(tmp_path: Path, prepared: Prepared, workers: int) -> None:
    """Stopped in epoch 3: each sample is told by its content."""
    number_of = {prepared.read([index]).tobytes(): index for index in range(46)}
    seen: list[int] = []

    def make(act: Act) -> Job:
        def loss(logits: Tensor, labels: Tensor, raw: Tensor) -> Tensor:
            seen.extend(number_of[row.numpy().tobytes()] for row in raw)
            return F.cross_entropy(logits, labels) * act(sys._getframe(1).f_locals["record"])

        return toy.job(tmp_path, prepared, loss=loss, loader=LoaderSettings(workers=workers))

    job, _ = stopped_and_resumed(make, stop_in(14))
    assert seen == [index for step in range(1, 25) for index in window(job, step)]


def images(folder: Path) -> Prepared:
    return toy.prepare(folder, shape=(6, 6, 1))


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("change", [{"flip": True, "crop": 2, "cutout": 2}, {"mixup": 0.4, "flip": True}])
def test_augmentation_depends_on_neither_workers_nor_resume(tmp_path: Path, change: dict[str, Any]) -> None:
    prepared, results = images(tmp_path / "images"), []
    settings = {"augment": Augment(**change), "epochs": 3}
    stops: list[list[Act]] = [[], [stop_in(10)], [stop_in(8), stop_in(15)]]
    for number, workers in enumerate((0, 2, 0)):

        def make(act: Act, number: int = number, workers: int = workers) -> Job:
            return toy.job(
                tmp_path / str(number), prepared, toy.network(36), settings=settings, loss=loss_that(act),
                loader=LoaderSettings(workers=workers), store=Store("toy", str(number), "c"),
            )  # fmt: skip

        job, _ = stopped_and_resumed(make, *stops[number])
        results.append(toy.result(job))
    assert results[0] == results[1] == results[2]


@pytest.mark.usefixtures("stoppable")
@pytest.mark.parametrize("schedule", ["warmup_cosine", "one_cycle", "cosine_restarts", "warmup_linear"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam_then_sgd", "lion"])
def test_rates_and_optimizers_go_on_bit_for_bit(
    tmp_path: Path, prepared: Prepared, schedule: str, optimizer: str
) -> None:
    settings = {"schedule": schedule, "optimizer": optimizer, "lr": 0.001}

    def make(act: Act, name: str = "b") -> Job:
        return toy.job(tmp_path / name, prepared, settings=settings, loss=loss_that(act), store=Store("toy", name, "c"))

    unbroken = make(lambda _: 1.0, "a")
    fit(unbroken)
    resumed, _ = stopped_and_resumed(make, stop_in(11), stop_in(13))
    assert [row["lr"] for row in rows(resumed, "steps.jsonl")] == [row["lr"] for row in rows(unbroken, "steps.jsonl")]
    assert toy.result(resumed) == toy.result(unbroken)


def test_another_number_of_steps_is_another_training(tmp_path: Path, prepared: Prepared) -> None:
    """So that a schedule is never rescaled in silence."""
    from stages.checkpoints.fingerprint import fingerprint

    def of(epochs: int) -> str:
        return fingerprint(
            params=toy.job(tmp_path, prepared, settings={"epochs": epochs}).settings.model_dump(mode="json"),
            data="d", inputs={}, seed=0, threads=1, micro_batch=4, module=nn.Linear(2, 2),
        )  # fmt: skip

    assert of(4) != of(5)
    assert of(4) == of(4)


MILLION = 1_000_000


@pytest.mark.usefixtures("stoppable")
def test_in_the_middle_of_a_million_samples_no_skipped_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = toy.prepare(tmp_path / "million", train=MILLION, val=8, shape=(2,))
    batch, stop = 50_000, 12

    def make(act: Act) -> Job:
        return toy.job(
            tmp_path, prepared, nn.Linear(2, 3), settings={"epochs": 1, "batch_size": batch}, micro_batch=batch,
            loss=loss_that(act),
        )  # fmt: skip

    read: list[np.ndarray[Any, Any]] = []
    original = prepared_module.Prepared.read
    with pytest.raises(Stopped):
        fit(make(stop_in(stop)))
    stopping._state.requested = False

    def counted(self: Prepared, indices: Any) -> Any:
        read.append(np.asarray(indices))
        return original(self, indices)

    monkeypatch.setattr(prepared_module.Prepared, "read", counted)
    job = make(lambda _: 1.0)
    fit(job)
    train = np.concatenate([part for part in read if len(part) == batch])
    assert sum(len(part) for part in read) == MILLION - stop * batch + 8
    assert len(np.unique(train)) == len(train) == MILLION - stop * batch
    assert train[:batch].tolist() == window(job, stop + 1)


def test_a_checkpoint_is_not_held_beside_the_network(tmp_path: Path, prepared: Prepared) -> None:
    """Once a run goes on, nothing of what was read back is alive; before that it is mapped from the file."""
    fitted_to = toy.job(tmp_path, prepared, settings={"epochs": 2})
    calls = 0

    def fail(module: nn.Module, inputs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 18 and module.training:
            raise OSError(5, "Input/output error")

    fitted_to.module.register_forward_pre_hook(fail)
    with pytest.raises(OSError, match="Input/output"):
        fit(fitted_to)
    resumed = toy.job(tmp_path, prepared, settings={"epochs": 2})
    held: list[int] = []

    def look(module: nn.Module, inputs: Any) -> None:
        held.append(sum(type(one) is Saved for one in gc.get_objects()))

    resumed.module.register_forward_pre_hook(look)
    fit(resumed)
    assert held
    assert set(held) == {0}


def test_fewer_samples_than_a_batch_and_one_left_over(tmp_path: Path) -> None:
    """Case 23, with the full set of options."""
    settings = {"epochs": 2, "ema": {"decay": 0.9}, "reestimate_batchnorm": True, "save_every_steps": 1}
    for train in (3, 9, 17):
        prepared = toy.prepare(tmp_path / f"data{train}", train=train)
        job = toy.job(tmp_path / str(train), prepared, settings=settings, store=Store("toy", str(train), "c"))
        assert fit(job).status == "finished"
        assert sum(map(sum, rows(job, "epochs.jsonl")[0]["train_confusion"])) == train
