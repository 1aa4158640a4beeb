"""How a run ends: the exit codes of the stages, and the one exception for what a person can put right."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """The exit codes of the stages and of `shipway` (a test holds them equal to stages/runtime/exits.py)."""

    DONE = 0
    GATE = 3
    PARAMS = 64
    DATA = 65
    BUG = 70
    DISK = 74
    STOPPED = 75


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


class StopAsked(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP. No Exception: nothing that handles errors may swallow it."""
