"""What the flows need of git, through its own command."""

from pathlib import Path

from flows import supervisor
from flows.ends import Refused
from stages.config.exits import Exit


def git(tree: Path, *arguments: str, what: str) -> str:
    """Runs `git ARGUMENTS` in `tree`; what it printed. Raises `Refused` (74) where it fails; `what` says at what."""
    code, printed = supervisor.call(["git", *arguments], cwd=tree, capture=True)
    if code:
        raise Refused(Exit.DISK, f"{what}: git {arguments[0]} ended with {code} in {tree}; its words stand above")
    return printed.strip()


def commit_of(tree: Path, revision: str) -> str:
    """The commit that a person's words stand for. Raises `Refused` (64)."""
    asked = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    code, printed = supervisor.call(asked, cwd=tree, capture=True)
    if code:
        raise Refused(
            Exit.PARAMS,
            f"revision {revision!r} is no commit, branch or tag of {tree}; `git log --oneline` lists commits",
        )
    return printed.strip()


def uncommitted(tree: Path) -> list[str]:
    """Files that differ from the last commit, params.yaml among them."""
    changed = git(tree, "status", "--porcelain", "--untracked-files=no", what="cannot look for changes")
    return [line[3:] for line in changed.splitlines()]


def commit_all(tree: Path, author_of: Path, message: str) -> bool:
    """Commits all that git does not ignore, as the person whose repository `author_of` is. False: nothing new."""
    git(tree, "add", "--all", what="cannot add the results")
    if not git(tree, "status", "--porcelain", what="cannot look at the results"):
        return False
    name, email = (_config(author_of, f"user.{key}") for key in ("name", "email"))
    author = ["-c", f"user.name={name or 'Shipway'}", "-c", f"user.email={email or 'shipway@localhost'}"]
    git(tree, *author, "commit", "--quiet", "--no-verify", "-m", message, what="cannot commit the results")
    return True


def _config(tree: Path, key: str) -> str:
    return supervisor.call(["git", "config", key], cwd=tree, capture=True)[1].strip()
