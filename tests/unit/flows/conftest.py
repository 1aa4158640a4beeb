"""A small served repository: real git, real DVC, and a git configuration of its own."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Repository:
    """A git repository in a folder with a space in its path."""

    root: Path

    def git(self, *arguments: str) -> str:
        """`git ARGUMENTS`; what it printed."""
        done = subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, name: str, text: str) -> str:
        """Writes a file and commits it; the commit."""
        (self.root / name).write_text(text)
        self.git("add", "--", name)
        self.git("commit", "-q", "-m", f"{name}: {text}")
        return self.git("rev-parse", "HEAD")

    def state(self) -> tuple[str, str, str, dict[str, bytes]]:
        """What a served run must leave alone: HEAD, index, working tree."""
        files = [path for path in sorted(self.root.iterdir()) if path.is_file()]
        index = self.git("ls-files", "--stage")
        status = self.git("status", "--porcelain")
        return self.git("rev-parse", "HEAD"), index, status, {path.name: path.read_bytes() for path in files}


@pytest.fixture
def git_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The person's git configuration, and nothing else of git or of ours in the environment."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "SHIPWAY_", "DVC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHIPWAY_STATE", "")  # So that what `for_run` sets is taken back, too.
    monkeypatch.delenv("SHIPWAY_STATE")
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\tname = Pat Person\n\temail = pat@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    return config


@pytest.fixture
def served(tmp_path: Path, git_config: Path) -> Repository:
    """A repository with one commit on `main`."""
    repository = Repository(tmp_path / "a served one")
    (repository.root / ".dvc").mkdir(parents=True)
    (repository.root / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (repository.root / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    (repository.root / ".gitignore").write_text("/.shipway/\n")
    (repository.root / "params.yaml").write_text("seed: 0\n")
    (repository.root / "code.py").write_text("one\n")
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "start")
    return repository
