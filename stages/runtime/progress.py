"""Progress of long work: a bar in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
_LINE_INTERVAL_S = 5.0


def say(line: str) -> None:
    """One line for the person who watches; flushed, since DVC and Prefect read through a pipe."""
    print(line, flush=True)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yields the items and shows how far it is: `for epoch in track(range(15), "train")`."""
    if sys.stderr.isatty():
        from tqdm import tqdm  # Only where there is someone to see the bar.

        yield from tqdm(items, desc=what, total=total, leave=False)
        return
    if total is None and isinstance(items, Sized):
        total = len(items)
    shown = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        if time.monotonic() - shown >= _LINE_INTERVAL_S:
            shown = time.monotonic()
            say(f"{what}: {done}" + (f" of {total}" if total else ""))
