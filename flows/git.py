"""What the flows need of git, through its own command."""

import re
from pathlib import Path

from flows import supervisor
from flows.ends import Refused
from stages.config.exits import Exit

_MOST = 300
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def git(tree: Path, *arguments: str, what: str) -> str:
    """Runs `git ARGUMENTS` in `tree`; what it printed. Raises `Refused` (74) where it fails; `what` says at what."""
    code, printed, words = supervisor.call_and_hear(["git", *arguments], cwd=tree)
    if code:
        said = " ".join(words.split())[-_MOST:] or f"it ended with {code}"
        raise Refused(Exit.DISK, f"{what} in {tree}: git says: {said}")
    return printed


def commit_of(tree: Path, revision: str) -> str:
    """The commit that a person's words stand for. Raises `Refused` (64)."""
    asked = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    code, printed = supervisor.call(asked, cwd=tree, capture=True) if revision.isprintable() else (1, "")
    if code or _COMMIT.fullmatch(printed.strip()) is None:
        raise Refused(
            Exit.PARAMS,
            f"revision {revision!r} is no commit, branch or tag of {tree}; `git log --oneline` lists commits",
        )
    return printed.strip()


def committed(tree: Path, path: Path) -> bytes:
    """A file's content as the last commit has it: what a person is just editing is not in it. Raises `Refused`."""
    return git(tree, "show", f"HEAD:{path.as_posix()}", what=f"cannot read the last commit's {path}").encode()


def uncommitted(tree: Path, *, new_too: bool = False) -> list[str]:
    """Files that differ from the last commit; with `new_too` also those that git neither knows nor ignores."""
    kind = "normal" if new_too else "no"
    changed = git(tree, "status", "--porcelain", "-z", "--no-renames", f"--untracked-files={kind}", what="cannot look")
    return [entry[3:] for entry in changed.split("\0") if entry]


def in_the_way(tree: Path, branch: str) -> list[str]:
    """Files of no commit that a merge of the branch would overwrite."""
    known = git(tree, "ls-files", "-z", what="cannot look")
    brought = git(tree, "ls-tree", "-r", "-z", "--name-only", branch, "--", what="cannot look")
    return sorted(path for path in set(brought.split("\0")) - set(known.split("\0")) if path and (tree / path).exists())


def is_detached(tree: Path) -> bool:
    """Whether HEAD is a commit of its own, and no branch."""
    return supervisor.call(["git", "symbolic-ref", "--quiet", "HEAD"], cwd=tree, capture=True)[0] != 0


def commit_all(tree: Path, author_of: Path, message: str) -> bool:
    """Commits all that git does not ignore, as the person whose repository `author_of` is. False: nothing new."""
    git(tree, "add", "--all", what="cannot add the results")
    if not git(tree, "status", "--porcelain", what="cannot look at the results"):
        return False
    name, email = (_config(author_of, f"user.{key}") for key in ("name", "email"))
    author = ["-c", f"user.name={name or 'Shipway'}", "-c", f"user.email={email or 'shipway@localhost'}"]
    author += ["-c", "commit.gpgsign=false"]  # Nobody is there to type a passphrase.
    git(tree, *author, "commit", "--quiet", "--no-verify", "-m", message, what="cannot commit the results")
    return True


def _config(tree: Path, key: str) -> str:
    return supervisor.call(["git", "config", key], cwd=tree, capture=True)[1].strip()
