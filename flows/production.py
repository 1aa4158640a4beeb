"""What is in production: `paths.production` holds a folder per released bundle, and `current`, a link to one of them.

Serving code reads `current`. The link is swapped atomically; each swap is a line in `audit.jsonl`.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.ends import Refused
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, load

CURRENT, AUDIT = "current", "audit.jsonl"
_LOCK = ".lock"


def place(home: Path) -> Path:
    """The folder that `paths.production` names; a relative one is relative to the served repository.

    Raises `Refused` when it lies in the repository: clones and commits would carry it along.
    """
    found = Path(os.path.realpath(home / load(home / PARAMS_FILE)["paths"]["production"]))
    if found.is_relative_to(os.path.realpath(home)):
        raise Refused(Exit.PARAMS, f"paths.production must lie outside the repository; it is {found}")
    return found


def current(production: Path) -> str | None:
    """Digest of the bundle in production; None: nothing is yet. Raises `Refused` when `current` is no link of ours."""
    link = production / CURRENT
    if not link.is_symlink():
        if link.exists():
            raise Refused(Exit.DISK, f"{link} must be a link that `promote` made; move what is there away")
        return None
    target = str(link.readlink())
    if "/" in target or not (production / target).is_dir():
        raise Refused(
            Exit.DISK, f"{link} points to {target}, which is no bundle here; `shipway rollback DIGEST` mends it"
        )
    return target


def audit(production: Path) -> list[dict[str, Any]]:
    """The lines of the audit, oldest first."""
    path = production / AUDIT
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.strip()]


@contextmanager
def locked(production: Path) -> Iterator[None]:
    """One swap at a time, from wherever it is asked for."""
    production.mkdir(parents=True, exist_ok=True)
    with (production / _LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def note(production: Path, what: str, who: str, **fields: Any) -> None:
    """Appends a line to the audit, durably: who said what, when, about which digests."""
    line = {"what": what, "who": who, "when": datetime.now(UTC).isoformat(timespec="seconds"), **fields}
    with (production / AUDIT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def swap(production: Path, digest: str, what: str, who: str, **fields: Any) -> bool:
    """Points `current` to a released bundle and writes the audit's line; False when it was there already.

    Inside `locked`. A kill between the two leaves the swap done; the line is then written by the next attempt.
    """
    former = current(production) if not _is_broken(production) else None
    if former != digest:
        temporary = production / f".{CURRENT}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(digest, target_is_directory=True)
        temporary.replace(production / CURRENT)
        _sync(production)
    lines = [line for line in audit(production) if "to" in line]
    if former == digest and lines and lines[-1]["to"] == digest:
        return False
    told = lines[-1]["to"] if former == digest and lines else former
    note(production, what, who, **{"from": told, "to": digest}, **fields)
    return True


def rollback(production: Path, digest: str | None, who: str) -> str:
    """Goes back to the bundle that was in production before, or to a given one; its digest. Raises `Refused`."""
    with locked(production):
        target = digest or _former(production)
        if "/" in target or target.startswith(".") or not (production / target / "manifest.json").is_file():
            raise Refused(Exit.PARAMS, f"{target} is no bundle in {production}; `ls {production}` shows which are")
        if not swap(production, target, "rollback", who):
            raise Refused(Exit.PARAMS, f"{target} is in production already")
    return target


def _former(production: Path) -> str:
    now = current(production)
    for line in reversed(audit(production)):
        if line.get("to") == now and line.get("from"):
            return str(line["from"])
    raise Refused(
        Exit.PARAMS, f"nothing was in production before ({production / AUDIT}); `shipway rollback DIGEST` names one"
    )


def _is_broken(production: Path) -> bool:
    link = production / CURRENT
    return link.is_symlink() and not link.exists()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
