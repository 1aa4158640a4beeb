"""What a failed DVC run means: the stage's own words where it left some, else DVC's fault as one clear line."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flows.ends import Ended, Refused
from flows.supervisor import Report
from stages.config.exits import Exit

_BUSY = re.compile(r"is busy, it is being blocked by|Unable to acquire lock")
_HOLDER = re.compile(r"\(PID (\d+)\): (.+)")
_FAILED_STAGE = re.compile(r"failed to reproduce '([^']+)'")
_EXITED = re.compile(r"exited with (-?\d+)$")
_ERROR = re.compile(r"^ERROR: (?:configuration error(?: - )?)?(.*)")
_FULL = ("No space left on device", "File too large", "Disk quota exceeded")
_DENIED = (
    "Read-only file system",
    "Permission denied",
    "Errno 13",
    "Not a directory",
    "Errno 20",
    "File exists",
    "Errno 17",
)
DISK_WORDS = (*_FULL, "Read-only file system", "Permission denied")
"""The system's words for a full or forbidden disk, as other programs print them."""
_MISSING = (
    "No such file or directory",
    "missing data 'source'",
    "missing-files",
    "does not exist",
    "Missing cache",
    "is not a file or directory",
)
_PARAMS_FAULTS = re.compile(r"Parameters '.*' are missing from|Could not find '[^']+'")
_FILE_FAULTS = ("dvc.yaml", "dvc.lock", ".dvc' ", "failed to parse", "is invalid", "validation failed")


class Busy(Exception):
    """Another DVC process holds what is needed: to be tried again."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        super().__init__(sentence)


def ended(report: Report, last: Mapping[str, Mapping[str, Any]], target: str | None) -> Ended:
    """How a run ended. `last`: what the stages of this run said. Raises `Busy`."""
    ran = tuple(stage for stage, fields in last.items() if fields["code"] == 0)
    if report.stopped is not None:
        return Ended(Exit.STOPPED, "stopped on request; run again to go on", target, ran=ran)
    if report.lost:
        return Ended(Exit.STOPPED, "the supervisor of the run was killed; run again to go on", target, ran=ran)
    if report.returncode == 0:
        return Ended(Exit.DONE, ran=ran)
    for stage, fields in last.items():
        if fields["code"] != 0:
            evidence = fields.get("evidence") or {}
            return Ended(int(fields["code"]), str(fields.get("sentence", "")), stage, dict(evidence), ran)
    return _without_words(report, target, ran)


def _without_words(report: Report, target: str | None, ran: tuple[str, ...]) -> Ended:
    """No stage left a word: one was killed or could not start, or DVC itself is at fault."""
    text = "\n".join(report.tail)
    if _BUSY.search(text):
        raise Busy(_busy_sentence(text))
    found = _FAILED_STAGE.search(text)
    stage = found.group(1) if found else target
    errors = [match.group(1) for match in map(_ERROR.match, report.tail) if match]
    said = errors[-1].strip() if errors else ""
    exited = _EXITED.search(said)
    if exited and stage:
        return _silent_stage(stage, int(exited.group(1)), ran)
    if report.returncode < 0:
        sentence = f"DVC was killed by signal {-report.returncode}; run again to go on"
        return Ended(Exit.STOPPED, sentence, stage, {"signal": -report.returncode}, ran)
    code, advice = _kind(said or text)
    return Ended(code, f"DVC: {said or _last_lines(report.tail)}; {advice}", stage, ran=ran)


def _silent_stage(stage: str, status: int, ran: tuple[str, ...]) -> Ended:
    number = -status if status < 0 else status - 128 if status > 128 else 0
    if number:
        sentence = f"{stage} was killed by signal {number} (9: often out of memory); run again to go on"
        return Ended(Exit.STOPPED, sentence, stage, {"signal": number}, ran)
    code = status if status in set(Exit) else Exit.BUG
    sentence = f"{stage} ended with exit code {status} before it could say why; see the lines above"
    return Ended(code, sentence, stage, ran=ran)


def _busy_sentence(text: str) -> str:
    holder = _HOLDER.search(text)
    who = f"process {holder.group(1)} ({holder.group(2).strip()})" if holder else "another process"
    return f"DVC is busy: {who} works in this repository"


def _last_lines(tail: Sequence[str]) -> str:
    return " ".join(tail[-3:]) or "failed without a word"


def _kind(said: str) -> tuple[Exit, str]:
    """Exit code and advice for DVC's own words."""
    if any(words in said for words in _FULL):
        return Exit.DISK, "free space, then run again"
    if any(words in said for words in _DENIED):
        return Exit.DISK, "fix the permissions or move away what is in the way, then run again"
    if _PARAMS_FAULTS.search(said):
        return Exit.PARAMS, "dvc.yaml reads this key: put it into params.yaml, or correct the file"
    if any(words in said for words in _MISSING):
        return Exit.DATA, "put the file back (`dvc checkout` or `dvc pull`), or fix the path in params.yaml or dvc.yaml"
    if any(words in said for words in _FILE_FAULTS):
        return Exit.PARAMS, "correct the file (`git diff` shows what changed)"
    return Exit.BUG, "see the lines above"


def from_exception(error: Exception) -> Exception:
    """What an exception of DVC's API stands for: `Busy`, `Refused`, or the error itself where it is a bug of ours."""
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.lock import LockError

    words = _one_line(error)
    if isinstance(error, LockError):
        return Busy(_busy_sentence(str(error)))
    if isinstance(error, NotDvcRepoError):
        return Refused(Exit.PARAMS, "no DVC repository here (.dvc is missing); take a whole clone, or run `dvc init`")
    if isinstance(error, ImportError):  # A remote storage whose client is not installed.
        return Refused(Exit.PARAMS, f"DVC: {words}; install what it names, or give a path on this machine")
    if isinstance(error, OSError):
        code, advice = _kind(words)
        return Refused(Exit.DISK if code == Exit.BUG else code, f"DVC: {words}; {advice}")
    if isinstance(error, DvcException):
        code, advice = _kind(words)
        if code == Exit.BUG:
            code, advice = Exit.PARAMS, "correct dvc.yaml or .dvc/config (`git diff` shows what changed)"
        return Refused(code, f"DVC: {words}; {advice}")
    return error


def _one_line(error: Exception) -> str:
    """An exception and its cause in one line."""
    parts = [str(error), *([str(error.__cause__)] if error.__cause__ is not None else [])]
    return ": ".join(" ".join(part.split()) for part in parts if part.strip())
