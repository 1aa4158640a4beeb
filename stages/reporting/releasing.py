"""Takes a bundle and its run's record out of the repository."""

import os
import shutil
from pathlib import Path
from typing import Any

from stages.deployment.verifying import verify
from stages.reporting.provenance import MANIFEST, RECORD_SUFFIX, describe, find_record
from stages.runtime.exits import BadData, BadParams, DiskFault
from stages.runtime.files import digest, files_below, sync_folder, write_json


def release(bundle: Path, dest: Path) -> Path:
    """Copies the bundle to `dest/<digest>`, its record to `dest/<digest>.record.json`. Returns the copy's folder.

    The copy appears whole or not at all, and is read back before it does. A bundle that is there already is left as
    it is. Raises `BadData` for a damaged bundle, `BadParams` for a destination inside the repository, `DiskFault` when
    something else lies at its place or the system refuses.
    """
    try:
        return _release(bundle, dest)
    except shutil.Error as error:  # One line for each file that could not be copied.
        raise DiskFault(
            f"cannot release {bundle} to {dest}: {error.args[0][0][2]}; choose another folder or free space"
        ) from error
    except OSError as error:  # Also what only odd places have: /proc says that a folder "does not exist" as it is made.
        raise DiskFault(f"cannot release {bundle} to {dest}: {error}; choose another folder or free space") from error


def _release(bundle: Path, dest: Path) -> Path:
    if not (bundle / MANIFEST).is_file():
        raise BadData(f"{bundle} is no bundle: {MANIFEST} is missing; make one with `shipway run bundle`")
    place = Path(os.path.realpath(dest))  # Unlike Path.resolve, a circle of links is left to mkdir, which names it.
    if place.is_relative_to(bundle.resolve()):
        raise BadParams(f"the destination {dest} lies inside the bundle; choose a folder outside")
    if place.is_relative_to(Path.cwd().resolve()):
        raise BadParams(f"the destination {dest} lies inside the repository; choose a folder outside")
    verify(bundle)
    found = digest(bundle)
    dest.mkdir(parents=True, exist_ok=True)
    target = dest / found
    if target.exists() and (not target.is_dir() or digest(target) != found):
        raise DiskFault(f"{target} holds something else than this bundle; move it away, then release again")
    if not target.exists():
        _copy(bundle, target, found)
    write_json(dest / f"{found}{RECORD_SUFFIX}", _record(bundle, found))  # Last: no record without its bundle.
    return target


def _copy(bundle: Path, target: Path, found: str) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copytree(bundle, temporary, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        if digest(temporary) != found:
            raise DiskFault(f"the copy in {target.parent} differs from {bundle}; the disk may be faulty: release again")
        for file in files_below(temporary):
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        temporary.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _record(bundle: Path, found: str) -> dict[str, Any]:
    """The run's record; where it is not at hand, what the history of dvc.lock tells."""
    recorded = find_record(bundle, found)
    if recorded is not None:
        return recorded
    told = describe(bundle)
    made = told["made"]
    git = {"commit": made["commit"], "branch": None, "dirty": None, "why": made["how"]}
    host: dict[str, Any] = {"name": None}
    stage = (told["identity"] or {}).get("stage")
    return {"digest": found, "stage": stage, "identity": told["identity"], "git": git, "host": host, "time": None}
