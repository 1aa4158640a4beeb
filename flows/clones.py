"""Clones of the served repository: each served run works in one of its own, so nobody's working tree is touched.

A clone shares DVC's cache and the state (checkpoints, decisions, records) with the repository. It lives as long as its
run may be retried; its result goes to a branch of the repository.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from flows import dvc, git
from flows.ends import Refused
from flows.workspace import STATE
from stages.config.exits import Exit

_FOLDER = STATE / "clones"
_READY = "shipway-ready"
"""File in the clone's .git: it is complete, made of the commit that stands there."""

_REMOTE = "served"
_HALF_MADE_S = 3600.0
_held: list[TextIO] = []

KEPT = 5
"""Clones of failed runs that are kept for a retry; older ones go."""


@dataclass(frozen=True)
class Clone:
    """The working tree of one served run."""

    root: Path
    home: Path
    """The served repository."""

    branch: str

    def commit(self, message: str) -> bool:
        """Commits on the run's branch; False when nothing is new."""
        return git.commit_all(self.root, self.home, message)

    @property
    def has_commits(self) -> bool:
        """Whether anything (a changed setting) has been committed since it was made."""
        return git.commit_of(self.root, "HEAD") != (self.root / ".git" / _READY).read_text("utf-8")

    def publish(self) -> str:
        """Brings the branch into the served repository; its commit. Raises `Refused`."""
        target = f"HEAD:refs/heads/{self.branch}"
        git.git(self.root, "push", "--quiet", "--force", _REMOTE, target, what="cannot bring the results home")
        return git.commit_of(self.root, "HEAD")

    def remove(self) -> None:
        """Removes the working tree; branch, cache and checkpoints stay."""
        os.chdir(self.home)  # The run may work inside.
        shutil.rmtree(self.root)


def for_run(home: Path, run_id: str, name: str, revision: str | None, say: Callable[[str], None]) -> Clone:
    """The clone of a run: the one that it left when it failed, or a new one at a revision. Raises `Refused`."""
    if not (home / ".git").exists():
        raise Refused(Exit.PARAMS, f"served runs need a git repository, {home} is none; `git init`, then commit")
    os.environ.setdefault("SHIPWAY_STATE", str(home / STATE))  # Read by the stages: checkpoints, decisions, records.
    clone = Clone(home / _FOLDER / run_id, home, branch_name(name, run_id))
    if (clone.root / ".git" / _READY).is_file():
        say(f"goes on in its clone {clone.root}")
        _hold(clone.root)
        return clone
    commit = git.commit_of(home, revision or "HEAD")
    changed = git.uncommitted(home, new_too=True)
    if changed and revision is None:
        say(f"takes the last commit {commit[:12]}; not committed, and so not in it: {', '.join(changed[:5])}")
    _make(clone, commit)
    _hold(clone.root)
    _remove_old(home / _FOLDER)
    return clone


def branch_name(name: str, run_id: str) -> str:
    """`shipway/<the run's name>-<start of its id>`; a name that a person typed may hold anything."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return f"shipway/{plain or 'run'}-{run_id[:8]}"


def _make(clone: Clone, commit: str) -> None:
    shutil.rmtree(clone.root, ignore_errors=True)
    clone.root.parent.mkdir(parents=True, exist_ok=True)
    options = ["--quiet", "--no-checkout", "--local", "--origin", _REMOTE]
    git.git(clone.home, "clone", *options, "--", str(clone.home), str(clone.root), what="cannot clone")
    git.git(clone.root, "checkout", "--quiet", "-B", clone.branch, commit, what="cannot check the revision out")
    dvc.share_cache(clone.home, clone.root)
    (clone.root / ".git" / _READY).write_text(commit)


def _hold(clone: Path) -> None:
    """Marks a clone as in use until this process ends."""
    file = (clone / ".git" / _READY).open("a")
    fcntl.flock(file, fcntl.LOCK_SH)
    _held.append(file)


def _remove_old(folder: Path) -> None:
    """Of the clones that nobody uses only the newest are kept; a promotion that waits makes its own anew."""
    idle = sorted((path for path in folder.iterdir() if not _in_use(path)), key=_age_key)
    for path in idle[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _age_key(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # Removed by another run meanwhile.
        return 0.0


def _in_use(clone: Path) -> bool:
    try:
        with (clone / ".git" / _READY).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # Half made: by a run that was killed, or that is just making it.
        return time.time() - _age_key(clone) < _HALF_MADE_S
    return False
