"""What the stages said of their last run in this working tree: `.shipway/last/<stage>.json`."""

import json
from pathlib import Path
from typing import Any

from flows.workspace import STATE

_UNFINISHED = STATE / "unfinished"


def read(tree: Path) -> dict[str, dict[str, Any]]:
    """By stage: `code`, `sentence`, `evidence`, `seconds`. What is no such file is left out."""
    found = {}
    for path in sorted((tree / STATE / "last").glob("*.json")):
        fields = _fields(path)
        if fields is not None:
            found[path.stem] = fields
    return found


def _fields(path: Path) -> dict[str, Any] | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("code"), int) else None


def clear(tree: Path) -> None:
    """Before a run: nothing of a former one may speak for it."""
    for path in (tree / STATE / "last").glob("*.json"):
        path.unlink(missing_ok=True)


def begin(tree: Path) -> None:
    """A run in this folder begins; until `end`, it is one to go on with, whatever kills it."""
    clear(tree)
    (tree / STATE).mkdir(exist_ok=True)
    (tree / _UNFINISHED).touch()


def end(tree: Path) -> None:
    """It is done."""
    (tree / _UNFINISHED).unlink(missing_ok=True)


def unfinished(tree: Path) -> bool:
    """Whether the last run in this folder did not end well."""
    return (tree / _UNFINISHED).exists() or any(fields["code"] != 0 for fields in read(tree).values())


def clear_failures(tree: Path) -> None:
    """Before each start of DVC: only a stage that fails now may speak of a failure."""
    for stage, fields in read(tree).items():
        if fields["code"] != 0:
            (tree / STATE / "last" / f"{stage}.json").unlink(missing_ok=True)
