"""Worker processes that read batches into shared memory: in order, with a bounded wait, and an error names the sample.

Not torch's DataLoader: that one takes a seed from the global generator (so that the number of workers would change
what dropout draws), and reports a dead worker from a signal handler, in the midst of whatever runs then.
"""

import math
import mmap
import multiprocessing
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data.prepared import Indices, Prepared
from stages.runtime import stopping
from stages.runtime.exits import BadData, StageError

SLOTS = 2
"""Batches that each worker may be ahead."""
_IDLE = -1
_SIGNAL_GRACE_S = 0.5


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    slots: npt.NDArray[Any]
    """Shared (SLOTS, batch, *shape)."""
    reading: Indices
    """Shared (1,): the sample that is being read, or -1."""


def read_samples(prepared: Prepared, indices: Indices) -> npt.NDArray[Any]:
    """As `prepared.read`, sample by sample, as a plain loader does."""
    return np.stack([prepared.read(indices[i : i + 1])[0] for i in range(len(indices))])


def read_in_workers(
    prepared: Prepared, parts: Sequence[Indices], count: int, *, batched: bool, wait_s: float
) -> Iterator[npt.NDArray[Any]]:
    """Raw samples of each part of indices, in order, read by `count` processes.

    Raises `BadData` that names the sample when a worker dies or gives nothing for `wait_s` seconds. On a stop request
    the workers may be gone before the caller's next safe point; what it still asks for is read in process.
    """
    count = min(count, len(parts))
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            workers.append(_start(prepared, max(map(len, parts)), batched, [worker.pipe for worker in workers]))
        for number in range(min(count * SLOTS, len(parts))):
            _ask(workers, parts, number)
        for number, part in enumerate(parts):
            yield _receive(prepared, workers[number % count], part, number // count % SLOTS, wait_s)
            if number + count * SLOTS < len(parts):
                _ask(workers, parts, number + count * SLOTS)
    finally:
        for worker in workers:
            worker.pipe.close()
            worker.process.kill()  # It holds nothing that could be lost.
        for worker in workers:
            worker.process.join()


def _start(prepared: Prepared, rows: int, batched: bool, siblings: list[Connection]) -> _Worker:
    slots = _shared((SLOTS, rows, *prepared.info.shape), np.dtype(prepared.info.dtype))
    reading: Indices = _shared((1,), np.dtype(np.int64))
    reading[0] = _IDLE
    # Forked, so that a worker starts in milliseconds and shares anonymous memory, which /dev/shm does not limit. It
    # runs numpy and Pillow alone, so that no lock of another library's thread can hold it up.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    arguments = (prepared, theirs, [*siblings, ours], slots, reading, batched)
    process = context.Process(target=_work, args=arguments, daemon=True, name="loader")
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork in a process with threads.
        warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
        process.start()
    theirs.close()
    return _Worker(process, ours, slots, reading)


def _shared(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    size = math.prod(shape)
    return np.frombuffer(mmap.mmap(-1, max(size * dtype.itemsize, 1)), dtype=dtype, count=size).reshape(shape)


def _work(
    prepared: Prepared,
    pipe: Connection,
    inherited: list[Connection],
    slots: npt.NDArray[Any],
    reading: Indices,
    batched: bool,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the stage itself decides.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for connection in inherited:  # Else a worker would not notice that the stage has died.
        connection.close()
    whole = batched and prepared.info.kind == "array"
    try:
        while True:
            slot, indices = pipe.recv()
            pipe.send(_fill(prepared, slots[slot], indices, reading, whole))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _fill(
    prepared: Prepared, slot: npt.NDArray[Any], indices: Indices, reading: Indices, whole: bool
) -> StageError | str | None:
    try:
        if whole:
            slot[: len(indices)] = prepared.read(indices)
            return None
        for row in range(len(indices)):
            reading[0] = indices[row]
            slot[row] = prepared.read(indices[row : row + 1])[0]
        reading[0] = _IDLE
    except StageError as error:
        return error
    except Exception:
        return traceback.format_exc()
    return None


def _ask(workers: list[_Worker], parts: Sequence[Indices], number: int) -> None:
    worker = workers[number % len(workers)]
    try:
        worker.pipe.send((number // len(workers) % SLOTS, parts[number]))
    except (BrokenPipeError, ConnectionResetError):
        return  # It is dead; `_receive` says so when its batch is due.


def _receive(prepared: Prepared, worker: _Worker, part: Indices, slot: int, wait_s: float) -> npt.NDArray[Any]:
    try:
        ready = wait([worker.pipe, worker.process.sentinel], timeout=wait_s)
        if worker.pipe in ready:
            answer = worker.pipe.recv()
            if isinstance(answer, StageError):
                raise answer
            if answer is not None:
                raise RuntimeError(f"a loader worker failed:\n{answer}")
            return worker.slots[slot, : len(part)].copy()
    except (EOFError, ConnectionResetError):
        ready = [worker.process.sentinel]
    if ready and _stopped():
        return prepared.read(part)
    where = _where(prepared, worker, part)
    if not ready:
        advice = "is the file on a disk that does not answer? benchmark_data.fixed_workers: 0 reads in process"
        raise BadData(f"a loader worker gave nothing for {wait_s:g} s while reading {where}: {advice}")
    worker.process.join()
    advice = "is memory short? benchmark_data.fixed_workers: 0 reads in process"
    raise BadData(f"a loader worker died ({_ending(worker.process.exitcode)}) while reading {where}: {advice}")


def _stopped() -> bool:
    """Whether a stop was asked for; the worker may have seen the group's signal a moment earlier."""
    until = time.monotonic() + _SIGNAL_GRACE_S
    while not stopping.requested() and time.monotonic() < until:
        time.sleep(0.01)
    return stopping.requested()


def _ending(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _where(prepared: Prepared, worker: _Worker, part: Indices) -> str:
    index = int(worker.reading[0])
    if index != _IDLE:
        return prepared.describe(index)
    return f"a batch of {len(part)} that starts with {prepared.describe(int(part[0]))}"
