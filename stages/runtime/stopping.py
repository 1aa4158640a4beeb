"""Stopping on request: SIGTERM and SIGINT end a stage with 75, after a save where the stage can save."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SUPERVISOR_VARIABLE = "SHIPWAY_SUPERVISOR_PID"
_WATCH_INTERVAL_S = 0.5


class StopRequested(BaseException):
    """Raised where a stage does not poll `requested()`.

    No Exception: a library's `except Exception` must not swallow it.
    """


class _State:
    polled = False
    requested = False


_state = _State()


def requested() -> bool:
    """True once a stop was asked for; for code inside `polled()`."""
    return _state.requested


@contextmanager
def polled() -> Iterator[None]:
    """Inside, a stop only sets `requested()`: the caller looks at it at every safe point and saves."""
    _state.polled = True
    try:
        yield
    finally:
        _state.polled = False


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _state.requested = True
    if not _state.polled:
        raise StopRequested


def install() -> None:
    """Takes over SIGTERM and SIGINT, and stops the stage when its supervisor has died.

    DVC passes no pipe on to a stage, so the supervisor's process id comes by environment.
    """
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    supervisor = os.environ.get(SUPERVISOR_VARIABLE, "")
    if supervisor.isdigit():
        threading.Thread(target=_watch, args=(int(supervisor),), daemon=True, name="supervisor-watch").start()


def _watch(supervisor: int) -> None:
    while is_alive(supervisor):
        time.sleep(_WATCH_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
