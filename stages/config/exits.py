"""The exit codes of the stages and of `shipway`."""

from enum import IntEnum


class Exit(IntEnum):
    """How a stage, and a run, ends. The numbers follow sysexits.h where it has one."""

    DONE = 0
    GATE = 3
    PARAMS = 64
    DATA = 65
    BUG = 70
    DISK = 74
    STOPPED = 75
