"""Exit codes, and the exceptions that stand for them. One sentence each: what is required, what came, what to do."""

import errno
from collections.abc import Mapping
from typing import ClassVar

from pydantic import JsonValue

from stages.config.exits import Exit as Exit


class StageError(Exception):
    """A foreseen end of a stage: no traceback, one sentence, evidence for the record."""

    code: ClassVar[Exit] = Exit.BUG

    def __init__(self, sentence: str, evidence: Mapping[str, JsonValue] | None = None) -> None:
        self.sentence = sentence
        self.evidence: dict[str, JsonValue] = dict(evidence or {})
        super().__init__(sentence)


class GateFailed(StageError):
    """A gate stops the pipeline and says why. Its outputs are thrown away; to keep them, set `Result.gate`."""

    code = Exit.GATE


class BadParams(StageError):
    """A parameter that is valid by itself cannot be used here, or the user's own model or factory is at fault."""

    code = Exit.PARAMS


class BadData(StageError):
    """The data cannot be used. Put the list of offenders into the evidence and the first few into the sentence."""

    code = Exit.DATA


class DiskFault(StageError):
    """No space, no permission, or something in the way."""

    code = Exit.DISK


class Stopped(StageError):
    """Stopped on request; what was done so far is saved."""

    code = Exit.STOPPED


_DISK_ERRNOS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO,
    errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.EMFILE, errno.ENOTEMPTY,
}  # fmt: skip
MEMORY_WORDS = (
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Of those who do not raise a type of their own for it: the CPU's allocator, CUDA's libraries."""
_DISK_WORDS = ("No space left on device", "File too large", "Disk quota exceeded", "Read-only file system")


def as_stage_error(error: BaseException) -> StageError | None:
    """The foreseen end that an exception stands for, or None for a bug of ours.

    Libraries in C++ or Rust report a full disk as a plain RuntimeError with the system's words in it.
    """
    if isinstance(error, StageError):
        return error
    if isinstance(error, OSError) and error.errno in _DISK_ERRNOS:
        return DiskFault(f"cannot write or read: {error}; free space or fix the permissions, then run again")
    if any(words in str(error) for words in _DISK_WORDS):
        return DiskFault(f"cannot write: {error}; free space, then run again")
    if isinstance(error, MemoryError) or any(words in str(error) for words in MEMORY_WORDS):
        said = " ".join(str(error).split())[:200] or type(error).__name__
        return BadParams(f"memory ran out ({said}); free memory, or take a smaller network, batch or image size")
    return None
