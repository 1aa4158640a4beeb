"""Prefect's states for how our runs end: a failed one carries the stage's own sentence, and no traceback."""

import logging
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.ends import Ended, RunFailed
from stages.config.exits import Exit

_NAMES = {
    Exit.GATE: "Gate failed",
    Exit.PARAMS: "Bad parameters",
    Exit.DATA: "Bad data",
    Exit.DISK: "Disk fault",
    Exit.STOPPED: "Stopped",
}

NAMES = (*_NAMES.values(), "No change", "Promoted", "Rejected", "In production", "Stale")
"""Names of final states of our flows, beside Prefect's own."""


def failed(ended: Ended, name: str | None = None) -> State[Ended]:
    """A failed state whose message is the stage's own sentence; the exit code gives it its name."""
    by_code = _NAMES.get(Exit(ended.code) if ended.code in set(Exit) else Exit.BUG, "Failed")
    return Failed(name=name or by_code, message=ended.sentence, data=RunFailed(ended))


def done(name: str, message: str) -> State[Ended]:
    """A completed state."""
    return Completed(name=name, message=message, data=Ended(Exit.DONE))


def ended(state: State[Any], stage: str) -> Ended:
    """What a state holds; one of a task that raised (a bug, a lost server) holds an exception."""
    found = state.result(raise_on_failure=False)
    if isinstance(found, RunFailed):
        return found.ended
    return found if isinstance(found, Ended) else Ended(Exit.BUG, state.message or "the task crashed", stage)


def _tells_something(record: logging.LogRecord) -> bool:
    """False for what Prefect logs beside a returned failed state: the traceback of a plain failure, or an empty one."""
    info = record.exc_info
    return not isinstance(info, tuple) or not (info[1] is None or isinstance(info[1], RunFailed))


for _name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine"):
    logging.getLogger(_name).addFilter(_tells_something)
