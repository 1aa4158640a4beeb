"""Loaders: every setting gives the same batches; workers that die, hang or find a changed file are named."""

import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stages.data.loaders import (
    STAGE,
    LoaderSettings,
    batches,
    decision_key,
    describe,
    epoch_order,
    loader_settings,
)
from stages.data.prepared import Prepared
from stages.runtime import decisions, stopping
from stages.runtime.exits import BadData
from stages.runtime.files import read_json
from tests.unit.data.build import prepare, random_images, write_folder, write_npz

SETTINGS = [LoaderSettings(workers, batched) for workers in (0, 1, 2) for batched in (True, False)]


@pytest.fixture
def array(tmp_path: Path) -> Prepared:
    images, labels = random_images(100)
    path = write_npz(tmp_path / "a.npz", images=images, labels=labels)
    return prepare(tmp_path / "array", source="npz", path=path)[0]


@pytest.fixture
def files(tmp_path: Path) -> Prepared:
    images, labels = random_images(60)
    return prepare(tmp_path / "files", source="image_folder", path=write_folder(tmp_path / "raw", images, labels))[0]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    assert active_children() == []


@pytest.mark.parametrize("kind", ["array", "files"])
@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_every_setting_gives_the_same_batches(
    request: pytest.FixtureRequest, kind: str, settings: LoaderSettings
) -> None:
    prepared: Prepared = request.getfixturevalue(kind)
    order = epoch_order(prepared.indices("train"), 0, 3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = list(batches(prepared, order, 7, settings))
    assert torch.equal(torch.get_rng_state(), state), "a setting must not change what is drawn afterwards"
    assert [len(labels) for _, labels in found] == [7] * (len(order) // 7) + [len(order) % 7]
    samples, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    assert samples.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert np.array_equal(samples.numpy(), prepared.read(order))
    assert np.array_equal(labels.numpy(), prepared.labels[order])


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_batches_are_the_callers_own(array: Prepared, settings: LoaderSettings) -> None:
    kept = []
    for samples, _ in batches(array, np.arange(90), 10, settings):
        kept.append(samples)
        assert samples.is_contiguous()
    assert np.array_equal(torch.cat(kept).numpy(), array.read(np.arange(90)))
    kept[0].fill_(0)
    assert array.read([0]).any()


@pytest.mark.parametrize("settings", [LoaderSettings(0), LoaderSettings(2), LoaderSettings(2, False)], ids=describe)
def test_small_cases(array: Prepared, settings: LoaderSettings) -> None:
    assert list(batches(array, np.empty(0, np.int64), 8, settings)) == []
    ((samples, labels),) = batches(array, np.array([5]), 8, settings)
    assert samples.shape == (1, 6, 6, 1)
    assert labels.tolist() == [int(array.labels[5])]
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        next(batches(array, np.arange(3), 0, settings))


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone() -> None:
    indices = np.arange(50) * 3
    first = epoch_order(indices, 0, 1)
    assert sorted(first) == indices.tolist()
    assert np.array_equal(first, epoch_order(indices, 0, 1))
    assert not np.array_equal(first, epoch_order(indices, 0, 2))
    assert not np.array_equal(first, epoch_order(indices, 1, 1))
    assert first[:6].tolist() == [36, 84, 117, 78, 123, 69], "resuming an old checkpoint needs the same order"


@pytest.mark.parametrize("settings", SETTINGS, ids=describe)
def test_a_file_that_changed_is_named_whoever_reads_it(files: Prepared, settings: LoaderSettings) -> None:
    path = read_json(files.folder / "files.json")[30]["path"]
    (Path(str(files.info.root)) / path).write_bytes(b"other")
    stream = batches(files, np.arange(60), 8, settings)
    for _ in range(3):
        next(stream)
    with pytest.raises(BadData) as caught:
        next(stream)
    assert caught.value.sentence.startswith(f"{files.info.root}/{path}: data changed between stages")


def _block(files: Prepared, index: int) -> Path:
    """Puts a pipe in a file's place: reading it waits for ever."""
    path = Path(str(files.info.root)) / read_json(files.folder / "files.json")[index]["path"]
    path.unlink()
    os.mkfifo(path)
    return path


def test_a_worker_that_hangs_ends_in_a_bounded_wait_and_the_sample_is_named(files: Prepared) -> None:
    path = _block(files, 30)
    with pytest.raises(BadData) as caught:
        list(batches(files, np.arange(60), 8, LoaderSettings(2), wait_s=1.0))
    assert f"gave nothing for 1 s while reading sample 30 (class1/{path.name})" in caught.value.sentence


def test_a_worker_that_is_killed_is_reported_with_its_sample(files: Prepared) -> None:
    _block(files, 9)
    stream = batches(files, np.arange(60), 8, LoaderSettings(2), wait_s=30.0)
    next(stream)
    time.sleep(0.3)  # By now one worker waits at sample 9.
    for worker in active_children():
        os.kill(int(worker.pid or 0), signal.SIGKILL)
    with pytest.raises(BadData, match=r"a loader worker died \(SIGKILL\) while reading sample 9 \(class0/"):
        list(stream)


def test_an_idle_worker_that_is_killed_is_reported_with_its_batch(array: Prepared) -> None:
    stream = batches(array, np.arange(100), 8, LoaderSettings(1))
    next(stream)
    time.sleep(0.2)
    for worker in active_children():
        os.kill(int(worker.pid or 0), signal.SIGKILL)
    with pytest.raises(BadData, match=r"died \(SIGKILL\) while reading a batch of 8 that starts with sample \d+:"):
        list(stream)


def test_after_a_stop_request_batches_go_on_in_process(array: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, (samples, _) in enumerate(batches(array, np.arange(100), 8, LoaderSettings(2))):
        if number == 2:
            monkeypatch.setattr(stopping._state, "requested", True)
            for worker in active_children():
                os.kill(int(worker.pid or 0), signal.SIGTERM)  # As a supervisor stops the whole group.
        found.append(samples)
    assert np.array_equal(torch.cat(found).numpy(), array.read(np.arange(100)))


def test_workers_ignore_the_interrupt_key(array: Prepared) -> None:
    found = []
    for number, (samples, _) in enumerate(batches(array, np.arange(100), 8, LoaderSettings(2))):
        if number == 2:
            for worker in active_children():
                os.kill(int(worker.pid or 0), signal.SIGINT)
        found.append(samples)
    assert np.array_equal(torch.cat(found).numpy(), array.read(np.arange(100)))


def test_breaking_off_leaves_no_worker(files: Prepared) -> None:
    for _ in batches(files, np.arange(60), 8, LoaderSettings(2)):
        break
    assert active_children() == []


def test_workers_end_when_the_stage_is_killed(array: Prepared) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # Stands for a stage that is killed in the midst of an epoch.
        stream = batches(array, np.arange(100), 8, LoaderSettings(2))
        next(stream)
        os.write(writer, b" ".join(str(worker.pid).encode() for worker in active_children()))
        os.kill(os.getpid(), signal.SIGKILL)
    pids = [int(pid) for pid in os.read(reader, 100).split()]
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    assert len(pids) == 2
    until = time.monotonic() + 5.0
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_decision_is_recalled_for_this_data_alone(
    array: Prepared, files: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path / "state"))
    assert loader_settings(array) == LoaderSettings()
    assert (
        "no loader settings measured for this data and machine: batched indexing in process" in capsys.readouterr().out
    )
    decisions.keep(STAGE, decision_key(array), {"workers": 2, "batched": False}, {})
    assert loader_settings(array) == LoaderSettings(2, False)
    assert capsys.readouterr().out == ""
    assert loader_settings(files) == LoaderSettings()
