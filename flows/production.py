"""What is in production: `paths.production` holds a folder per released bundle, and `current`, a link to one of them.

Serving code reads `current`. The link is swapped atomically; each swap is a line in `audit.jsonl`.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.candidates import SHORTEST
from flows.ends import Refused
from stages.config.exits import Exit

CURRENT, AUDIT = "current", "audit.jsonl"
_LOCK = ".lock"
_DIGEST = re.compile(r"[0-9a-f]{4,64}")


def place(home: Path, params: Mapping[str, Any]) -> Path:
    """The folder that `paths.production` of the params names; a relative one is relative to the served repository.

    Raises `Refused` when it lies in the repository: clones and commits would carry it along.
    """
    found = Path(os.path.realpath(home / params["paths"]["production"]))
    if found.is_relative_to(os.path.realpath(home)):
        raise Refused(Exit.PARAMS, f"paths.production must lie outside the repository; it is {found}")
    return found


def current(production: Path) -> str | None:
    """Digest of the bundle in production; None: nothing is yet. Raises `Refused` when `current` is no link of ours."""
    link = production / CURRENT
    _require_link(link)
    found = _linked(production)
    if found is None and link.is_symlink():
        raise Refused(
            Exit.DISK,
            f"{link} points to {link.readlink()}, which is no bundle here; `shipway rollback DIGEST` mends it",
        )
    return found


def _require_link(link: Path) -> None:
    if link.exists() and not link.is_symlink():
        raise Refused(Exit.DISK, f"{link} must be a link that `promote` made; move what is there away")


def _linked(production: Path) -> str | None:
    """Digest that `current` names; None where it is no link to a bundle in this folder."""
    link = production / CURRENT
    target = str(link.readlink()) if link.is_symlink() else ""
    return target if _is_bundle(production, target) else None


def _is_bundle(production: Path, digest: str) -> bool:
    return _DIGEST.fullmatch(digest) is not None and (production / digest / "manifest.json").is_file()


def audit(production: Path) -> list[dict[str, Any]]:
    """The lines of the audit, oldest first. One that was cut off in the writing has not happened."""
    path = production / AUDIT
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n") if path.is_file() else ("", "", "")
    found = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found += [dict(json.loads(line))] if line.strip() else []
        except (ValueError, TypeError):
            raise Refused(Exit.DISK, f"{path}: line {number} is damaged; mend it, or take it out") from None
    return found


@contextmanager
def locked(production: Path) -> Iterator[None]:
    """One swap at a time, from wherever it is asked for. A swap that was cut off by a kill is first carried out."""
    production.mkdir(parents=True, exist_ok=True)
    with (production / _LOCK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _require_link(production / CURRENT)
        last = _last_swap(production)
        if last is not None and last["to"] != _linked(production) and _is_bundle(production, last["to"]):
            _link(production, last["to"])
        yield


def note(production: Path, what: str, who: str, **fields: Any) -> None:
    """Appends a line to the audit, durably: who said what, when, about which digests. Inside `locked`."""
    line = {"what": what, "who": who, "when": datetime.now(UTC).isoformat(timespec="seconds"), **fields}
    with (production / AUDIT).open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)  # What was cut off in the writing.
        file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def swap(production: Path, digest: str, what: str, who: str, **fields: Any) -> bool:
    """Writes the audit's line, then points `current` to a released bundle; False when it was there already.

    Inside `locked`, which carries out what a kill has cut off between the two.
    """
    _require_link(production / CURRENT)
    former = _linked(production)
    if former == digest:
        return False
    note(production, what, who, **{"from": former, "to": digest}, **fields)
    _link(production, digest)
    return True


def rollback(
    production: Path, digest: str | None, who: str, require_whole: Callable[[Path], None] = lambda _: None
) -> str:
    """Goes back to the bundle that was in production before, or to a given one; its digest.

    `require_whole` raises `Refused` for the folder of a damaged bundle, which is then not put there. Raises `Refused`.
    """
    with locked(production):
        target = _former(production) if digest is None else _named(production, digest)
        if not _is_bundle(production, target):
            raise Refused(Exit.PARAMS, f"{target[:64]} is no bundle in {production}; `ls {production}` shows which are")
        require_whole(production / target)
        if not swap(production, target, "rollback", who):
            raise Refused(Exit.PARAMS, f"{target} is in production already")
    return target


def _named(production: Path, start: str) -> str:
    """The one bundle whose digest starts so; else what was given."""
    found = [path.name for path in production.iterdir() if _is_bundle(production, path.name)]
    fit = [name for name in found if len(start) >= SHORTEST and name.startswith(start)]
    return fit[0] if len(fit) == 1 else start


def _former(production: Path) -> str:
    now = current(production)
    last = _last_swap(production)
    if last is None or last["to"] != now or not last.get("from"):
        raise Refused(
            Exit.PARAMS, f"nothing was in production before ({production / AUDIT}); `shipway rollback DIGEST` names one"
        )
    return str(last["from"])


def _last_swap(production: Path) -> dict[str, Any] | None:
    return next((line for line in reversed(audit(production)) if "to" in line), None)


def _link(production: Path, digest: str) -> None:
    temporary = production / f".{CURRENT}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(digest, target_is_directory=True)
    temporary.replace(production / CURRENT)
    descriptor = os.open(production, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # Makes the rename durable.
    finally:
        os.close(descriptor)
