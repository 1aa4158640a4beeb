"""Bundles that served runs have made: where each one's commit is, and what it was worth when it was compared."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flows.ends import Refused
from flows.workspace import STATE
from stages.config.editing import replace_text
from stages.config.exits import Exit

SHORTEST = 8
"""Characters of a digest that name a bundle, at least."""

_FOLDER = STATE / "candidates"


@dataclass(frozen=True)
class Candidate:
    """A bundle and its commit, in the served repository."""

    digest: str
    commit: str
    branch: str
    run: str
    """Name of the run that made it."""

    made: str
    """When, in UTC."""

    compared: dict[str, Any]
    """By name (`candidate`, `production`): digest, accuracy, macro_f1, size, latency on the test split of that run."""

    asked: dict[str, str] = field(default_factory=dict)
    """Over which bundles in production (by digest, or `nothing`) approval was asked for, and in which run."""


def keep(home: Path, candidate: Candidate) -> None:
    """Writes a candidate down."""
    folder = home / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / f"{candidate.digest}.json", json.dumps(asdict(candidate), indent=2) + "\n")


def known(home: Path) -> dict[str, Candidate]:
    """All candidates by digest, oldest first."""
    found = [Candidate(**json.loads(path.read_text("utf-8"))) for path in (home / _FOLDER).glob("*.json")]
    return {one.digest: one for one in sorted(found, key=lambda one: one.made)}


def find(home: Path, digest: str | None) -> Candidate:
    """A candidate by its digest or the start of one (eight characters at least); without one the newest.

    Raises `Refused`.
    """
    found = known(home)
    if not found:
        raise Refused(Exit.PARAMS, "no served run has made a bundle yet; run train-to-deploy/on-demand first")
    if digest is None:
        return next(reversed(found.values()))
    fits = [one for one in found.values() if len(digest) >= SHORTEST and one.digest.startswith(digest)]
    if len(fits) != 1:
        newest = ", ".join(one.digest[:12] for one in list(found.values())[-3:])
        raise Refused(
            Exit.PARAMS,
            f"digest {digest!r} fits {len(fits)} bundles of served runs; at least {SHORTEST} characters of one are "
            f"needed; the newest: {newest}",
        )
    return fits[0]
