"""The files of a store of checkpoints, read back.

A checkpoint is `step-<n>.pt` (plain values and tensors, never unpickled code) and, written after it, `step-<n>.json`
with its SHA-256: without that file it counts as unfinished. `copies/` holds a second copy of those that later ones name
(of the best step, of the one to roll back to): a damaged file there would make all of them useless.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages.runtime.exits import BadData
from stages.runtime.files import read_json, sha256_file, write_bytes
from stages.runtime.progress import say

KEPT_TOO = ("best_step", "anchor_step")
"""What a checkpoint names that is kept with it."""

COPIES, HISTORY = "copies", "history"
"""Folders beside the checkpoints: of second copies, and of the history of the unfinished run."""

_NAME = re.compile(r"step-([0-9]{9,})\.pt")
_warned: set[str] = set()


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read back whole."""

    path: Path
    step: int
    payload: dict[str, Any]
    """`meta` and whatever `save` was given; its tensors are mapped from the file, on the CPU."""

    @property
    def meta(self) -> dict[str, Any]:
        """What the checkpoint says of itself."""
        return dict(self.payload["meta"])

    @property
    def anchor_step(self) -> int:
        """Of the checkpoint to roll back to; this one, where it names none."""
        anchor = self.meta.get("anchor_step")
        return self.step if anchor is None else int(anchor)


def describe(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: stage, params, data, code, lineage, epoch, step, best score, status.

    Adds `intact`: whether the file's checksum holds (None where the seal beside it is missing). Nothing is unpickled.
    Raises `BadData` when the file is no checkpoint of Shipway.
    """
    try:
        path.open("rb").close()
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # Torch's, of what else the file may be.
            meta = dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["meta"])
    except Exception as error:  # torch raises many types for a file that is no checkpoint, or is cut off.
        raise BadData(f"{path} is no checkpoint of Shipway ({type(error).__name__})") from None
    intact = None
    if path.with_suffix(".json").is_file():
        intact = sha256_file(path) == _fields(path.with_suffix(".json")).get("sha256")
    return {**meta, "intact": intact}


def _warn(what: str) -> None:
    """Once in a process: a checkpoint is looked at more than once."""
    if what not in _warned:
        _warned.add(what)
        say(f"warning: {what}")


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoint files, newest first."""
    named = [found for path in folder.glob("step-*.pt") if path.is_file() and (found := _NAME.fullmatch(path.name))]
    return sorted((int(found.group(1)) for found in named), reverse=True)


def seal_of(folder: Path, step: int) -> dict[str, Any]:
    """What was written beside a checkpoint: its checksum and what is kept with it; empty where that cannot be read."""
    seal = _fields(folder / f"step-{step:09d}.json")
    return seal if all(isinstance(seal.get(name), int | None) for name in KEPT_TOO) else {}


def _fields(seal: Path) -> dict[str, Any]:
    try:
        return dict(read_json(seal))
    except (OSError, ValueError, TypeError):
        return {}


def newest(folder: Path) -> Saved | None:
    """The newest checkpoint that can be gone on from."""
    return next(all_whole(folder), None)


def all_whole(folder: Path) -> Iterator[Saved]:
    """The checkpoints that can be gone on from, newest first; the others are told of."""
    for step in steps(folder):
        gone = [other for other in named_by(folder, step) if not _is_whole(path_of(folder, other))]
        if gone:
            _warn(
                f"checkpoint of step {step} in {folder} is refused: the one of step {gone[0]}, which it needs, is gone"
            )
            continue
        found = read_whole(path_of(folder, step))
        if found is not None:
            yield found


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of this step lies."""
    return folder / f"step-{step:09d}.pt"


def named_by(folder: Path, step: int) -> list[int]:
    """The other checkpoints that this one needs: that of the best step, and that to roll back to."""
    seal = seal_of(folder, step)
    return sorted({other for name in KEPT_TOO if (other := seal.get(name)) not in (None, step)})


def keep_copy(folder: Path, step: int) -> None:
    """Makes the second copy of a checkpoint, unless it is there or the first is damaged."""
    copies = folder / COPIES
    sealed = seal_of(copies, step).get("sha256")
    if sealed and sealed == seal_of(folder, step).get("sha256"):
        return
    if _is_whole(path_of(folder, step)):
        copies.mkdir(exist_ok=True)
        _copy(path_of(folder, step), copies)


def _copy(path: Path, folder: Path) -> None:
    """The seal last: without it a checkpoint counts as unfinished."""
    for file in (path, path.with_suffix(".json")):
        write_bytes(folder / file.name, file.read_bytes())


def _is_whole(path: Path) -> bool:
    """False, with a warning, for one that was cut off in the writing, truncated or altered, and has no copy."""
    fault = _fault(path)
    copy = path.parent / COPIES / path.name
    if fault and copy.is_file() and _fault(copy) is None:
        say(f"warning: checkpoint {path} is damaged; its second copy takes its place")
        _copy(copy, path.parent)
        return True
    if fault:
        _warn(f"checkpoint {path} is refused: {fault}")
    return fault is None


def _fault(path: Path) -> str | None:
    seal = path.with_suffix(".json")
    if not seal.is_file():
        return "it was not written to its end"
    expected = seal_of(path.parent, int(path.stem.removeprefix("step-"))).get("sha256")
    if not path.is_file() or sha256_file(path) != expected:
        return "its checksum does not hold (truncated or altered)"
    return None


def read_whole(path: Path) -> Saved | None:
    """The checkpoint of this file; None, with a warning, where it is damaged or of another place."""
    if not _is_whole(path):
        return None
    payload = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    step, told = int(path.stem.removeprefix("step-")), payload["meta"]
    if (told["step"], told["fingerprint"]) != (step, path.parent.parent.name):
        _warn(f"checkpoint {path} is refused: by its own words it is of step {told['step']} of another place")
        return None
    return Saved(path, step, payload)


def remove_leftovers(folder: Path) -> None:
    """Removes what a kill left half-written, and a file where a folder must be, with a warning."""
    for name in (COPIES, HISTORY):
        if (folder / name).is_file():
            say(f"warning: {folder / name} must be a folder; the file is removed")
            (folder / name).unlink()
    for path in (*folder.glob(".step-*.tmp"), *folder.glob(f"{COPIES}/.step-*.tmp")):
        say(f"warning: {path} was not written to its end; removed")
        path.unlink(missing_ok=True)
