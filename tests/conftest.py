"""Fixtures for all tests: a copy of the project in a repository of its own, real DVC, real processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from filelock import FileLock

from flows import server

ROOT = Path(__file__).parent.parent
SHIPPED = ("stages", "flows", "params.yaml", "dvc.yaml", ".dvc", ".dvcignore", ".gitignore", "pyproject.toml")


def environment(home: Path) -> dict[str, str]:
    """A clean environment: an empty HOME, the venv's programs first, no variable of ours inherited."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHIPWAY_", "DVC_", "PREFECT_"))}
    git = {f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | git | {"HOME": str(home), "PATH": path, "SHELL": "/bin/sh", "DVC_NO_ANALYTICS": "1"}


@dataclass(frozen=True)
class Workspace:
    """A copy of the project in a folder (with a space in its path) that is a git repository."""

    root: Path
    env: dict[str, str] = field(repr=False)

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 600, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in the workspace; on an unexpected failure shows all that it said."""
        done = subprocess.run(
            command, cwd=self.root, env=self.env | extra, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode != 0:
            pytest.fail(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def python(self, *arguments: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` with the tests' own interpreter."""
        return self.run(sys.executable, *arguments, check=check, **extra)

    def shipway(self, *arguments: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
        """`shipway ARGUMENTS`."""
        return self.python("-m", "flows.cli", *arguments, check=check, **extra)

    def dvc(self, *arguments: str, check: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
        """`dvc ARGUMENTS`."""
        return self.python("-m", "dvc", *arguments, check=check, **extra)

    def git(self, *arguments: str) -> str:
        """`git ARGUMENTS`; returns what it printed."""
        return self.run("git", *arguments).stdout

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        return (self.root / path).read_bytes()


def made_workspace(folder: Path) -> Workspace:
    """The workspace that `make_workspace` made in this folder."""
    return Workspace(folder / "a path with a space", environment(folder / "home"))


def make_workspace(folder: Path, *, git: bool = True) -> Workspace:
    """Copies what the repository ships (as it stands in the working tree) into a new folder."""
    workspace = made_workspace(folder)
    root = workspace.root
    root.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=ignored)
        else:
            shutil.copy2(source, root / name)
    (folder / "home").mkdir()
    if git:
        workspace.git("init", "-q", "-b", "main")
        workspace.git("add", "-A")
        workspace.git("commit", "-q", "-m", "start")
    return workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A fresh copy of the project in a git repository of its own."""
    return make_workspace(tmp_path)


@pytest.hookimpl(tryfirst=True)  # Before pytest-xdist reads the groups.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes, one takes a file whole; and one takes all tests that need the Prefect server."""
    for item in items:
        served = "prefect_server" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("prefect" if served else item.location[0]))


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist 3.8 loses its groups silently with pytest 9.2: each test then goes anywhere, and makes all anew."""
    if getattr(session.config.option, "loadgroup", False) and any("@" not in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist does not see the groups of tests; install pytest as in constraints.txt")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, made by the first of the session's processes that needs it; the others wait."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    folder = (factory.getbasetemp() if alone else factory.getbasetemp().parent) / f"once {name}"
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # Of a process whose `make` failed: it would fail again.
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The whole default pipeline, run once by `shipway run` for all tests that look at its results.

    Tests must leave it as it is; those that change something take `copied`.
    """

    def make(folder: Path) -> None:
        workspace = make_workspace(folder)
        workspace.shipway("run")
        workspace.git("add", "-A")
        workspace.git("commit", "-q", "-m", "first run")

    return made_workspace(once(tmp_path_factory, "finished", make))


@pytest.fixture
def copied(finished: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the finished workspace, cache, state and history included."""
    root = tmp_path / "a copy"
    shutil.copytree(finished.root, root, symlinks=True)
    return Workspace(root, finished.env)


@pytest.fixture(scope="session")
def tiny_done(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The small pipeline, run once by `shipway run`; to be left as it is."""
    from tests.tiny import make_tiny  # It needs `Workspace` from here.

    def make(folder: Path) -> None:
        workspace = make_workspace(folder)
        make_tiny(workspace.root)
        workspace.git("add", "-A")
        workspace.git("commit", "-q", "-m", "small pipeline")
        assert "THE TABLE" in workspace.shipway("run").stdout

    return made_workspace(once(tmp_path_factory, "tiny", make))


@pytest.fixture
def tiny(tiny_done: Workspace, tmp_path: Path) -> Workspace:
    """A copy of it, up to date, free to be changed."""
    root = tmp_path / "a copy"
    shutil.copytree(tiny_done.root, root, symlinks=True)
    return Workspace(root, tiny_done.env)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Address]:
    """One Prefect server for the whole session: a cold start takes 9 to 21 s."""
    with server.started(tmp_path_factory.mktemp("prefect server")) as address:
        yield address
