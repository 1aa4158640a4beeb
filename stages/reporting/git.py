"""Questions to git. Every answer may be None: an archive without git must work too."""

import subprocess
from pathlib import Path


def ask(*arguments: str, folder: Path = Path()) -> str | None:
    """What git prints; None without git, outside a repository, or when git refuses."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else None


def head() -> str | None:
    """The commit that is checked out; None outside git or before the first commit."""
    found = ask("rev-parse", "HEAD")
    return found.strip() if found else None


def commits_of(path: Path) -> list[str]:
    """The commits that changed a file, oldest first, on any branch."""
    found = ask("log", "--all", "--format=%H", "--topo-order", "--reverse", "--", path.as_posix())
    return (found or "").split()


def first_with(text: str, path: Path) -> str | None:
    """The oldest commit, on any branch, that put a text into a file."""
    found = ask("log", "--all", "--format=%H", "--topo-order", "--reverse", f"-S{text}", "--", path.as_posix())
    return found.split()[0] if found and found.split() else None


def at(commit: str, path: Path) -> str | None:
    """A file's text at a commit."""
    return ask("show", f"{commit}:./{path.as_posix()}")
