"""Clones of the served repository: what a run works in, and what of it comes home."""

import os
import re
import shutil
from pathlib import Path

import pytest

from flows.clones import KEPT, Clone, branch_name, for_run
from flows.ends import Refused
from stages.config.exits import Exit
from tests.unit.flows.conftest import Repository

RUN = "0123abcd-4567-89ab-cdef-0123456789ab"


@pytest.fixture
def said() -> list[str]:
    return []


def inside(clone: Clone) -> Repository:
    return Repository(clone.root)


def test_a_clone_at_the_last_commit(served: Repository, said: list[str]) -> None:
    before = served.state()
    clone = for_run(served.root, RUN, "Brave Bär", None, said.append)
    assert clone.root == served.root / ".shipway" / "clones" / RUN
    assert inside(clone).git("rev-parse", "HEAD") == served.git("rev-parse", "HEAD")
    assert inside(clone).git("branch", "--show-current") == clone.branch == "shipway/brave-b-r-0123abcd"
    assert inside(clone).git("status", "--porcelain") == ""
    assert (clone.root / "params.yaml").read_text() == "seed: 0\n"
    assert said == []
    assert served.state() == before
    assert served.git("branch", "--format=%(refname:short)") == "main"


@pytest.mark.parametrize("kind", ["commit", "short", "tag", "branch", "HEAD~1", "unreachable"])
def test_a_clone_at_a_revision(served: Repository, said: list[str], kind: str) -> None:
    first = served.git("rev-parse", "HEAD")
    served.git("tag", "-a", "v1", "-m", "x")
    served.git("branch", "old")
    served.commit("code.py", "two\n")
    revision = {"commit": first, "short": first[:9], "tag": "v1", "branch": "old"}.get(kind, kind)
    if kind == "unreachable":
        first = revision = served.commit("code.py", "one\n")
        served.git("reset", "-q", "--hard", "HEAD~1")
    (served.root / "params.yaml").write_text("seed: 9\n")
    clone = for_run(served.root, RUN, "x", revision, said.append)
    assert inside(clone).git("rev-parse", "HEAD") == first
    assert ((clone.root / "code.py").read_text(), (clone.root / "params.yaml").read_text()) == ("one\n", "seed: 0\n")
    assert said == []  # Who names a revision does not ask for the working tree.


def test_a_clone_stays_whole_when_the_repository_is_cleaned(served: Repository, said: list[str]) -> None:
    lost = served.commit("code.py", "two\n")
    served.git("reset", "-q", "--hard", "HEAD~1")
    clone = for_run(served.root, RUN, "x", lost, said.append)
    served.git("reflog", "expire", "--expire=now", "--all")
    served.git("gc", "--quiet", "--prune=now")
    assert inside(clone).git("fsck", "--no-dangling") == ""
    assert inside(clone).git("show", f"{lost}:code.py") == "two"


def test_what_is_not_committed_is_said_and_not_in_it(served: Repository, said: list[str]) -> None:
    (served.root / ".gitignore").write_text("/.shipway/\n# more\n")
    (served.root / "code.py").write_text("half an idea\n")
    served.git("rm", "-q", "--cached", "params.yaml")
    before = served.state()
    clone = for_run(served.root, RUN, "x", None, said.append)
    (line,) = said
    commit = served.git("rev-parse", "HEAD")[:12]
    assert line.startswith(f"takes the last commit {commit}; not committed, and so not in it: ")
    assert ".gitignore, code.py, params.yaml" in line
    assert (clone.root / "code.py").read_text() == "one\n"
    assert (clone.root / "params.yaml").is_file()
    assert served.state() == before


def test_a_second_call_goes_on_in_the_same_clone(served: Repository, said: list[str]) -> None:
    clone = for_run(served.root, RUN, "x", None, said.append)
    (clone.root / "params.yaml").write_text("seed: 1\n")
    (clone.root / "half.txt").touch()
    assert clone.commit("an edit") is True
    (clone.root / "more.txt").touch()
    served.commit("code.py", "two\n")
    again = for_run(served.root, RUN, "x", "none", said.append)  # Not asked again for what it was made of.
    assert again == clone
    assert said == [f"goes on in its clone {clone.root}"]
    assert inside(again).git("log", "-1", "--format=%s") == "an edit"
    assert (again.root / "more.txt").exists()
    assert (again.root / "code.py").read_text() == "one\n"


def test_a_clone_that_was_not_completed_is_made_anew(served: Repository, said: list[str]) -> None:
    clone = for_run(served.root, RUN, "x", None, said.append)
    (clone.root / ".git" / "shipway-ready").unlink()
    (clone.root / "code.py").unlink()
    (clone.root / "left over").touch()
    assert for_run(served.root, RUN, "x", None, said.append) == clone
    assert said == []
    assert (clone.root / "code.py").read_text() == "one\n"
    assert not (clone.root / "left over").exists()


def test_runs_do_not_share_a_clone(served: Repository, said: list[str]) -> None:
    one = for_run(served.root, RUN, "x", None, said.append)
    two = for_run(served.root, "f" + RUN[1:], "x", None, said.append)
    (one.root / "code.py").write_text("mine\n")
    assert one.commit("mine")
    assert (two.root / "code.py").read_text() == "one\n"
    assert one.branch != two.branch


def test_cache_remotes_and_state_are_those_of_the_repository(served: Repository, said: list[str]) -> None:
    (served.root / ".dvc" / "config.local").write_text("['remote \"near\"']\n    url = ../../store\n")
    clone = for_run(served.root, RUN, "x", None, said.append)
    config = (clone.root / ".dvc" / "config.local").read_text()
    assert f"dir = {served.root / '.dvc' / 'cache'}" in config
    assert f"url = {served.root.parent / 'store'}" in config
    assert os.environ["SHIPWAY_STATE"] == str(served.root / ".shipway")
    assert inside(clone).git("status", "--porcelain") == ""


def test_publish_brings_the_branch_home_and_leaves_the_tree_alone(served: Repository, said: list[str]) -> None:
    (served.root / "code.py").write_text("half an idea\n")
    (served.root / "untracked").touch()
    before = served.state()
    clone = for_run(served.root, RUN, "x", None, said.append)
    (clone.root / "result").write_text("good")
    assert clone.commit("a result") is True
    assert clone.commit("nothing more") is False
    commit = clone.publish()
    assert served.state() == before
    assert served.git("rev-parse", clone.branch) == commit == inside(clone).git("rev-parse", "HEAD")
    assert served.git("show", f"{clone.branch}:result") == "good"
    assert served.git("log", "--format=%s %an", clone.branch) == "a result Pat Person\nstart Pat Person"
    assert clone.publish() == commit


def test_publish_again_after_a_retry_takes_another_history(served: Repository, said: list[str]) -> None:
    clone = for_run(served.root, RUN, "x", None, said.append)
    (clone.root / "result").write_text("one")
    clone.commit("one")
    first = clone.publish()
    inside(clone).git("commit", "-q", "--amend", "-m", "another history")
    second = clone.publish()
    assert served.git("rev-parse", clone.branch) == second != first
    assert served.git("log", "--format=%s", clone.branch) == "another history\nstart"


def test_publish_where_the_repository_is_gone_is_refused(served: Repository, said: list[str], tmp_path: Path) -> None:
    clone = for_run(served.root, RUN, "x", None, said.append)
    moved = shutil.move(clone.root, tmp_path / "moved")
    shutil.rmtree(served.root)
    with pytest.raises(Refused, match="cannot bring the results home") as caught:
        Clone(Path(moved), served.root, clone.branch).publish()
    assert caught.value.code == Exit.DISK


def test_remove_leaves_the_branch(served: Repository, said: list[str]) -> None:
    clone = for_run(served.root, RUN, "x", None, said.append)
    (clone.root / "result").touch()
    clone.commit("a result")
    commit = clone.publish()
    clone.remove()
    assert not clone.root.exists()
    assert served.git("rev-parse", clone.branch) == commit
    assert served.git("fsck", "--no-dangling") == ""


def test_the_oldest_clones_go(served: Repository, said: list[str]) -> None:
    folder = served.root / ".shipway" / "clones"
    for age in range(KEPT + 2):
        (folder / f"run{age}").mkdir(parents=True)
        (folder / f"run{age}" / "full").touch()
        os.utime(folder / f"run{age}", (1_000_000 - age, 1_000_000 - age))
    clone = for_run(served.root, RUN, "x", None, said.append)
    assert sorted(path.name for path in folder.iterdir()) == sorted([RUN, *(f"run{age}" for age in range(KEPT))])
    os.utime(clone.root, (0, 0))
    assert for_run(served.root, RUN, "x", None, said.append).root.is_dir()


def test_outside_git_it_is_refused(tmp_path: Path, git_config: Path, said: list[str]) -> None:
    with pytest.raises(Refused, match="served runs need a git repository") as caught:
        for_run(tmp_path, RUN, "x", None, said.append)
    assert caught.value.code == Exit.PARAMS
    assert not (tmp_path / ".shipway").exists()


@pytest.mark.parametrize("revision", ["none", "--upload-pack=touch x", "-b", "HEAD:code.py", "main..main"])
def test_an_unknown_revision_is_refused(served: Repository, said: list[str], revision: str) -> None:
    before = served.state()
    with pytest.raises(Refused, match="is no commit, branch or tag") as caught:
        for_run(served.root, RUN, "x", revision, said.append)
    assert caught.value.code == Exit.PARAMS
    assert served.state() == before
    assert not (served.root / ".shipway").exists()


def test_without_a_commit_it_is_refused(tmp_path: Path, git_config: Path, said: list[str]) -> None:
    empty = Repository(tmp_path / "empty")
    empty.root.mkdir()
    empty.git("init", "-q")
    with pytest.raises(Refused, match="revision 'HEAD' is no commit") as caught:
        for_run(empty.root, RUN, "x", None, said.append)
    assert caught.value.code == Exit.PARAMS


def test_a_persons_name_for_remotes_does_not_matter(served: Repository, git_config: Path, said: list[str]) -> None:
    git_config.write_text(git_config.read_text() + "[clone]\n\tdefaultRemoteName = upstream\n")
    assert for_run(served.root, RUN, "x", None, said.append).publish()


def test_publish_leaves_a_branch_alone_that_is_checked_out(served: Repository, said: list[str]) -> None:
    clone = for_run(served.root, RUN, "x", None, said.append)
    clone.publish()
    served.git("checkout", "-q", clone.branch)
    before = served.state()
    (clone.root / "result").touch()
    clone.commit("a result")
    with pytest.raises(Refused, match="cannot bring the results home") as caught:
        clone.publish()
    assert caught.value.code == Exit.DISK
    assert served.state() == before
    assert (clone.root / "result").exists()
    served.git("checkout", "-q", "main")
    assert served.git("rev-parse", clone.branch) != clone.publish() == served.git("rev-parse", clone.branch)


NAMES = {"brave-otter": "brave-otter", "Größe 3!": "gr-e-3", "../../x": "x", "": "run", "💡": "run", "-": "run"}
NAMES |= {"a.lock": "a-lock", "a..b": "a-b", "@{-1}": "1", "refs/heads/main": "refs-heads-main", "a\nb\0": "a-b"}
NAMES |= {"x" * 200: "x" * 40, "--force": "force"}


@pytest.mark.parametrize(("name", "plain"), NAMES.items(), ids=[f"name{number}" for number in range(len(NAMES))])
def test_a_branch_may_be_called_so(served: Repository, name: str, plain: str) -> None:
    branch = branch_name(name, RUN)
    assert branch == f"shipway/{plain}-0123abcd"
    assert served.git("check-ref-format", "--branch", branch) == branch
    assert re.fullmatch(r"shipway/[a-z0-9-]+", branch)
    assert branch != branch_name(name, "f" + RUN[1:])
