"""What the flows need of git: real repositories, and what a person may type."""

import os
from pathlib import Path

import pytest

from flows import git
from flows.ends import Refused
from stages.config.exits import Exit
from tests.unit.flows.conftest import Repository


def test_what_git_printed(served: Repository) -> None:
    assert git.git(served.root, "log", "--format=%s", what="x") == "start\n"


def test_what_fails_is_said_with_what_it_was_for(served: Repository) -> None:
    with pytest.raises(Refused) as caught:
        git.git(served.root, "checkout", "--quiet", "none", what="cannot go there")
    assert caught.value.code == Exit.DISK
    assert caught.value.sentence.startswith(f"cannot go there in {served.root}: git says: ")


def test_a_revision_is_a_commit_a_branch_or_a_tag(served: Repository) -> None:
    first = served.git("rev-parse", "HEAD")
    served.git("tag", "-a", "v1", "-m", "a tag that is an object of its own")
    second = served.commit("code.py", "two\n")
    served.git("branch", "a/branch", "HEAD~1")
    for revision, commit in (("HEAD", second), ("main", second), ("v1", first), ("a/branch", first), ("HEAD~1", first)):
        assert git.commit_of(served.root, revision) == commit, revision
    assert git.commit_of(served.root, first[:10]) == first


@pytest.mark.parametrize(
    "revision",
    [
        "none",
        "",
        " ",
        "0" * 40,
        "HEAD~9",
        "HEAD:code.py",
        "HEAD^{tree}",
        "main..main",
        "HEAD HEAD",
        "HEAD\nHEAD",
        "@{-1}",
    ],
)
def test_what_is_no_commit_is_refused(served: Repository, revision: str) -> None:
    with pytest.raises(Refused) as caught:
        git.commit_of(served.root, revision)
    assert caught.value.code == Exit.PARAMS
    assert caught.value.sentence.startswith(f"revision {revision!r} is no commit, branch or tag of {served.root}")


@pytest.mark.parametrize(
    "revision", ["-1", "-h", "--all", "--branches", "--show-toplevel", "--end-of-options", "--", "-"]
)
def test_a_dash_begins_no_option(served: Repository, revision: str) -> None:
    with pytest.raises(Refused) as caught:
        git.commit_of(served.root, revision)
    assert caught.value.code == Exit.PARAMS


@pytest.mark.parametrize(
    "revision",
    [
        "^main",
        "a\0b",
    ],
    ids=["caret", "nul"],
)
def test_odd_revisions_are_refused(served: Repository, revision: str) -> None:
    with pytest.raises(Refused):
        git.commit_of(served.root, revision)


def test_a_clean_tree_has_no_changes(served: Repository) -> None:
    (served.root / "new.py").touch()
    assert git.uncommitted(served.root) == []


def test_changes_are_named(served: Repository) -> None:
    (served.root / ".gitignore").write_text("/.shipway/\n/x\n")
    (served.root / "code.py").unlink()
    served.git("rm", "-q", "--cached", "params.yaml")
    assert len(git.uncommitted(served.root)) == 3
    assert git.uncommitted(served.root)[1:] == ["code.py", "params.yaml"]


def test_the_first_change_is_named_whole(served: Repository) -> None:
    (served.root / "params.yaml").write_text("seed: 1\n")
    assert git.uncommitted(served.root) == ["params.yaml"]


def test_a_name_of_any_letters_is_named(served: Repository) -> None:
    for name in ("a b.py", "größe.py"):
        served.commit(name, "one")
        (served.root / name).write_text("two")
    (served.root / ".gitignore").write_text("\n")
    assert git.uncommitted(served.root)[1:] == ["a b.py", "größe.py"]


def test_all_that_is_not_ignored_is_committed(served: Repository, tmp_path: Path) -> None:
    (served.root / "params.yaml").write_text("seed: 1\n")
    (served.root / "new.py").touch()
    (served.root / "code.py").unlink()
    (served.root / ".shipway").mkdir()
    (served.root / ".shipway" / "state").touch()
    assert git.commit_all(served.root, served.root, "-m is no option\n\nbut text") is True
    assert served.git("show", "--name-status", "--format=").split() == [
        "D",
        "code.py",
        "A",
        "new.py",
        "M",
        "params.yaml",
    ]
    assert served.git("log", "-1", "--format=%B") == "-m is no option\n\nbut text"
    assert served.git("log", "-1", "--format=%an %ae %cn") == "Pat Person pat@example.org Pat Person"


def test_nothing_new_makes_no_commit(served: Repository) -> None:
    before = served.git("rev-parse", "HEAD")
    assert git.commit_all(served.root, served.root, "x") is False
    assert served.git("rev-parse", "HEAD") == before


def test_the_author_is_the_one_of_the_other_repository(served: Repository, tmp_path: Path) -> None:
    clone = Repository(tmp_path / "clone")
    served.git("clone", "-q", str(served.root), str(clone.root))
    served.git("config", "user.name", "Ünal Own")
    (clone.root / "new.py").touch()
    assert git.commit_all(clone.root, served.root, "x")
    assert clone.git("log", "-1", "--format=%an <%ae>") == "Ünal Own <pat@example.org>"


def test_a_commit_needs_no_name_and_runs_no_hook(served: Repository, git_config: Path) -> None:
    git_config.write_text("")
    hook = served.root / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    (served.root / "new.py").touch()
    assert git.commit_all(served.root, served.root, "x")
    assert served.git("log", "-1", "--format=%an <%ae>") == "Shipway <shipway@localhost>"


def test_a_commit_is_not_signed(served: Repository, git_config: Path) -> None:
    git_config.write_text(git_config.read_text() + "[commit]\n\tgpgsign = true\n[gpg]\n\tprogram = false\n")
    (served.root / "new.py").touch()
    assert git.commit_all(served.root, served.root, "x")


def test_the_environment_of_these_tests_is_clean(served: Repository) -> None:
    assert "SHIPWAY_STATE" not in os.environ
    assert served.git("config", "--show-origin", "user.name").split("\t")[1] == "Pat Person"
