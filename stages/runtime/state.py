"""Where the state of a workspace lies. SHIPWAY_STATE moves checkpoints, decisions and records (clones share them)."""

import os
from pathlib import Path

WORKSPACE = Path(".shipway")


def shared(kind: str) -> Path:
    """The folder of `checkpoints`, `decisions`, `runs` or `locks`."""
    return Path(os.environ.get("SHIPWAY_STATE") or WORKSPACE) / kind


def last(stage: str) -> Path:
    """How the stage's last run in this workspace ended."""
    return WORKSPACE / "last" / f"{stage}.json"
