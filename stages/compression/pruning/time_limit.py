"""A bound on the time of code that is not ours: Torch-Pruning can run on for minutes (einsum, for one)."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_REPEAT_S = 2.0


class TimeIsUp(BaseException):
    """The time is over. No Exception: the library's own `except:` clauses must not swallow it for good."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeIsUp` inside when the block takes longer. POSIX, in the main thread, where stages run.

    The alarm repeats until the block is left, since a bare `except:` may swallow the first.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("time_limit needs the main thread: only there does Python handle the alarm's signal")
    inside = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        if inside:
            raise TimeIsUp

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_S)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
