"""A served run ends with the process that serves it: nothing trains on that nobody can cancel."""

import os
import signal
import threading
import time

_LOOK_S = 0.5
_LIMIT_S = 35.0
"""For the stage to save and the flow to tell its state, if there is still somebody to tell."""


def end_with_parent() -> None:
    """Watches the parent process from now on; when it dies, this one gets SIGTERM, as by a stop."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True, name="parent-watch").start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LIMIT_S)
    os._exit(75)
