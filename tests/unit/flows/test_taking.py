"""A run's branch comes into a person's tree, or nothing is changed and the reason is said."""

import pytest

from flows import taking
from flows.ends import Refused
from stages.config.exits import Exit
from tests.unit.flows.conftest import Repository

BRANCH = "shipway/a-run-0123abcd"


@pytest.fixture
def offered(served: Repository) -> Repository:
    """A repository with a branch that changes code.py and brings dvc.lock."""
    served.git("checkout", "-q", "-b", BRANCH)
    served.commit("code.py", "better\n")
    served.commit("dvc.lock", "schema: '2.0'\n")
    served.git("checkout", "-q", "main")
    return served


def refused(repository: Repository) -> str:
    before = repository.state()
    with pytest.raises(Refused) as caught:
        taking.take(repository.root, BRANCH, print)
    assert caught.value.code == Exit.PARAMS
    assert repository.state() == before
    return caught.value.sentence


def test_it_is_merged(offered: Repository) -> None:
    assert taking.take(offered.root, BRANCH, print) == Exit.DONE
    assert (offered.root / "code.py").read_text() == "better\n"
    assert offered.git("status", "--porcelain") == ""


def test_results_of_ones_own_are_not_overwritten(offered: Repository) -> None:
    (offered.root / "dvc.lock").write_text("mine")
    (offered.root / "notes.txt").write_text("not in the way")
    assert "brings files that lie here, too, and are in no commit: dvc.lock; commit them" in refused(offered)


def test_a_change_that_is_not_committed(offered: Repository) -> None:
    (offered.root / "code.py").write_text("half an idea\n")
    assert "must be committed or stashed first: code.py" in refused(offered)


def test_a_conflict_is_taken_back(offered: Repository) -> None:
    offered.commit("code.py", "other\n")
    assert "cannot be merged by itself, and nothing was changed" in refused(offered)


def test_a_detached_head_would_lose_it(offered: Repository) -> None:
    offered.git("checkout", "-q", "--detach")
    assert "HEAD is on no branch" in refused(offered)


def test_an_unknown_branch(served: Repository) -> None:
    assert "is no commit, branch or tag" in refused(served)
