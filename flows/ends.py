"""How a run ends: what the exit codes mean, and the one exception for what a person can put right."""

from dataclasses import dataclass, field
from typing import Any

from stages.config.exits import Exit

MEANING = {
    Exit.DONE: "done",
    Exit.GATE: "a gate failed",
    Exit.PARAMS: "bad parameters or usage",
    Exit.DATA: "bad data",
    Exit.BUG: "a fault of the program",
    Exit.DISK: "disk or permissions",
    Exit.STOPPED: "stopped; run again to go on",
}


def meaning(code: int) -> str:
    """An exit code in a few words."""
    return MEANING[Exit(code)] if code in MEANING else "ended with an error"


@dataclass(frozen=True)
class Ended:
    """How a run of DVC ended, in the stage's own words where a stage ended it."""

    code: int
    sentence: str = ""
    stage: str | None = None
    """The stage that failed, where one did."""

    evidence: dict[str, Any] = field(default_factory=dict)
    ran: tuple[str, ...] = ()
    """Stages whose command ran to its end, by name."""


class Refused(Exception):
    """What a person can put right: one sentence (what is required, what came, what to do) and an exit code."""

    def __init__(self, code: Exit, sentence: str) -> None:
        self.code = code
        self.sentence = sentence
        super().__init__(sentence)


class RunFailed(Exception):
    """What a failed state of Prefect holds: how the run ended. Its log shows the sentence, no traceback."""

    def __init__(self, ended: Ended) -> None:
        self.ended = ended
        super().__init__(ended.sentence)


class StopAsked(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP. No Exception: nothing that handles errors may swallow it."""
