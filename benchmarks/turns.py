"""Runs several loops side by side in one process: each in a thread of its own, one at a time, some steps a turn.

So the loops share every drift of the machine, down to tens of milliseconds, and each starts up only once. A loop calls
`Turns.step` once in each of its steps; there the turn ends and the clock is read.
"""

import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of glibc's malloc.h."""


@dataclass(frozen=True)
class Spent:
    """Seconds of one turn."""

    wall: float
    processor: float
    """Of all threads of this process."""


class Abandoned(BaseException):
    """Another loop has failed. No Exception: a loop must not take it for a fault of the network."""


class Turns:
    """One loop's side: when it runs, and for how long."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._steps = 0
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._began = self._ended = (0.0, 0.0)
        self._abandoned = False

    def step(self) -> None:
        """The loop calls this in each step: at every `length`-th call it hands over, and waits for its next turn."""
        if self._steps % self._length == 0:
            self._ended = _clocks()
            self._done.release()
            self._wait()
        self._steps += 1

    def run(self, loop: Callable[[], None]) -> None:
        """In the loop's thread: waits for the first turn, then trains to the end."""
        self._wait()
        try:
            loop()
        finally:
            self._done.release()

    def take(self) -> Spent:
        """In the conductor's thread: lets the loop run until it hands over or ends."""
        self._go.release()
        self._done.acquire()
        wall, processor = (end - begin for begin, end in zip(self._began, self._ended, strict=True))
        return Spent(wall, processor)

    def abandon(self) -> None:
        """Ends the loop where it waits."""
        self._abandoned = True
        self._go.release()

    def _wait(self) -> None:
        self._go.acquire()
        if self._abandoned:
            raise Abandoned
        self._began = _clocks()


def side_by_side(
    loops: dict[str, Callable[[Turns], None]], *, length: int, warm_up: int, rounds: int, turns: int = 1
) -> list[dict[str, Spent]]:
    """What each loop spent in each round, of `turns` turns of `length` steps; who comes first is random each time.

    A loop must make (warm_up + rounds) * turns * length + 1 steps: the rounds of `warm_up` do not count, the one step
    more shows that the last turn is over. Raises what a loop raised, and `RuntimeError` when one ends early.
    """
    sides = {name: Turns(length) for name in loops}
    order, taken = random.Random(0), []
    with ThreadPoolExecutor(len(loops)) as pool:
        running = {name: pool.submit(side.run, _bound(loops[name], side)) for name, side in sides.items()}

        def turn() -> dict[str, Spent]:
            return {name: _turn(sides[name], running[name]) for name in order.sample(list(loops), len(loops))}

        with _abandoning(sides):
            turn()  # Leads to each loop's first step.
            for number in range(warm_up + rounds):
                several = [turn() for _ in range(turns)]
                if number >= warm_up:
                    taken.append({name: _sum([spent[name] for spent in several]) for name in loops})
            for name, side in sides.items():
                side.take()
                running[name].result()
    return taken


def _sum(spent: list[Spent]) -> Spent:
    return Spent(sum(one.wall for one in spent), sum(one.processor for one in spent))


def keep_memory() -> bool:
    """One heap for all threads, which keeps what is freed; False where the C library is not glibc.

    Otherwise each thread has a heap of its own, and by chance that of one loop gives its activations back after every
    step and fetches them anew, page by page, while that of another does not: up to a factor of two for a small CNN.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = {_ARENA_MAX: 1, _MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**31 - 1}
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in settings.items())


def _bound(loop: Callable[[Turns], None], side: Turns) -> Callable[[], None]:
    return lambda: loop(side)


def _turn(side: Turns, running: "Future[None]") -> Spent:
    spent = side.take()
    if running.done():
        running.result()
        raise RuntimeError("a loop ended before its last turn")
    return spent


@contextmanager
def _abandoning(sides: dict[str, Turns]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for side in sides.values():
            side.abandon()
        raise


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
