"""The record of a run: what varies with time and place (commit, dirty tree, host), kept outside the artifact."""

import os
import platform
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stages.runtime import state
from stages.runtime.files import digest, files_below, read_json, sha256_bytes, sha256_file, write_json

RECORDED_SUFFIXES = (".safetensors", ".onnx")
_NOT_DIRTY = (":(exclude)artifacts", ":(exclude)dvc.lock", ":(exclude)params.yaml")
"""Results of a run, which say nothing of the code, and the parameters, which are recorded by value."""


def git_state() -> dict[str, Any]:
    """Commit, branch and a hash of everything uncommitted. Outside git: `{"commit": None, "why": ...}`."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "branch": None, "dirty": None, "why": refusal() or "no git repository or no commit"}
    branch = _git("symbolic-ref", "--short", "-q", "HEAD")
    return {
        "commit": commit.decode().strip(),
        "branch": branch.decode().strip() if branch else None,
        "why": None if branch else "detached HEAD",
        "dirty": _dirty_hash(),
    }


def refusal() -> str | None:
    """Why git does not work with this folder, where another user owns it (a container's volume); else None."""
    try:
        done = subprocess.run(["git", "rev-parse", "--git-dir"], capture_output=True, text=True, check=False)
    except FileNotFoundError:  # No git on this machine.
        return None
    if "dubious ownership" not in done.stderr:
        return None
    return f"git refuses the folder, since another user owns it (git config --global --add safe.directory {Path.cwd()})"


def _dirty_hash() -> str | None:
    changed = _git("diff", "HEAD", "--binary", "--", ".", *_NOT_DIRTY) or b""
    untracked = (_git("ls-files", "-z", "--others", "--exclude-standard", "--", ".", *_NOT_DIRTY) or b"").split(b"\0")
    parts = [changed]
    for name in sorted(filter(None, untracked)):
        path = Path(os.fsdecode(name))
        parts.append(name + b"\0" + (sha256_file(path).encode() if path.is_file() else b""))
    return sha256_bytes(b"".join(parts)) if any(parts) else None


def _git(*arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError:  # No git on this machine.
        return None
    return done.stdout if done.returncode == 0 else None


def host() -> dict[str, str]:
    """Where a run took place."""
    return {"name": socket.gethostname(), "system": platform.platform(), "processor": platform.machine()}


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write(stage: str, outputs: list[Path], identity: dict[str, Any], extra: dict[str, Any]) -> None:
    """One record per output and per model file in it: `runs/<digest>.json`. Readers join them by digest.

    A record that exists already is kept: the first run that made these bytes is the one that made them.
    """
    common = {"stage": stage, "identity": identity, "git": git_state(), "host": host(), "time": now(), **extra}
    for output in outputs:
        models = [file for file in files_below(output) if file.suffix in RECORDED_SUFFIXES] if output.is_dir() else []
        for path in [output, *models]:
            found = digest(path)
            target = state.shared("runs") / f"{found}.json"
            if not target.exists():
                write_json(target, {**common, "digest": found, "path": path.as_posix()})


def find(found: str) -> dict[str, Any] | None:
    """The record of the run that made these bytes, or None."""
    path = state.shared("runs") / f"{found}.json"
    return dict(read_json(path)) if path.is_file() else None
