"""Served runs by the API on a small pipeline: real server, real `shipway serve`, real signals, real DVC."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from flows import server
from tests.conftest import Workspace
from tests.e2e.served import RefusedByServer, Served, alive, serving, until, until_asleep

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(
    tiny_done: Workspace,
    prefect_server: server.Address,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """One served repository for all tests here; how `second@b` ends stands in the file `end` beside it."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(tiny_done.root, folder / "a repository", symlinks=True)
    workspace = Workspace(folder / "a repository", tiny_done.env)
    (folder / "end").touch()
    workspace.git("add", "-A")
    workspace.git("commit", "-q", "-m", "done")
    with serving(workspace, prefect_server, TINY_END_FILE=str(folder / "end")) as found:
        yield found


def end(served: Served, how: str) -> None:
    (served.workspace.root.parent / "end").write_text(how)


def unbroken_lock(served: Served, folder: Path, lr: float) -> bytes:
    """dvc.lock after a plain `shipway run` with this learning rate, at the served commit."""
    shutil.copytree(served.workspace.root, folder / "plain", symlinks=True, ignore=shutil.ignore_patterns(".shipway"))
    plain = Workspace(folder / "plain", served.workspace.env)
    shutil.rmtree(plain.root / ".dvc/cache")
    plain.shipway("run", "--set", f"train.lr={lr}")
    return plain.read("dvc.lock")


def on_branch(served: Served, branch: str, path: str) -> bytes:
    return served.workspace.git("show", f"{branch}:{path}").encode()


def test_a_run_with_another_lr_leaves_a_branch_and_nobody_elses_tree(served: Served, tmp_path: Path) -> None:
    end(served, "")
    before = served.workspace.git("rev-parse", "HEAD")
    run = served.run("train-to-deploy/on-demand", overrides={"train": {"lr": 0.01}, "data": None})
    assert served.until_state(run)[:2] == ("COMPLETED", "Completed")
    assert {name: state for name, (state, _) in served.tasks(run).items()} == {
        "first": "Completed",
        "second@a": "Completed",
        "second@b": "Completed",
        "third": "Completed",
    }
    branch = served.branch(run)
    assert b"lr: 0.01" in on_branch(served, branch, "params.yaml")
    assert on_branch(served, branch, "dvc.lock") == unbroken_lock(served, tmp_path, 0.01)
    assert served.workspace.git("status", "--porcelain") == ""
    assert served.workspace.git("rev-parse", "HEAD") == before
    assert not served.clone(run).exists()
    kinds = {one["type"] for one in served.ask("artifacts/filter", {"flow_runs": {"id": {"any_": [run]}}})}
    assert {"table", "markdown"} <= kinds
    served.workspace.shipway("take", branch)
    assert b"lr: 0.01" in served.workspace.read("params.yaml")
    assert "nothing to do" in served.workspace.shipway("run").stdout
    served.workspace.git("reset", "-q", "--hard", before.strip())
    served.workspace.dvc("checkout", "-q")


def test_nothing_changed_is_said_and_leaves_no_branch(served: Served) -> None:
    end(served, "")
    branches = served.workspace.git("branch", "--list")
    runs = [served.run("train-to-deploy/nightly", update_data=True, propose=True) for _ in range(3)]
    for run in runs:
        assert served.until_state(run)[:2] == ("COMPLETED", "No change")
        assert set(served.tasks(run).values()) == {("Cached", "up to date")}
    assert served.workspace.git("branch", "--list") == branches


def test_silent_runs_are_watched_and_nobody_is_told_without_a_webhook(served: Served) -> None:
    (found,) = (one for one in served.ask("automations/filter", {}) if one["name"].startswith("Shipway"))
    assert found["enabled"]
    trigger = found["trigger"]
    assert (trigger["posture"], trigger["after"]) == ("Proactive", ["prefect.flow-run.heartbeat"])
    assert {"prefect.flow-run.heartbeat", "prefect.flow-run.Gate failed"} <= set(trigger["expect"])
    assert [(one["type"], one["state"]) for one in found["actions"]] == [("change-flow-run-state", "CRASHED")]


def test_another_repository_on_the_same_server_is_refused(served: Served, tmp_path: Path) -> None:
    """Else either of them would make the other one's runs."""
    shutil.copytree(served.workspace.root, tmp_path / "other", ignore=shutil.ignore_patterns(".shipway", "cache"))
    other = Workspace(tmp_path / "other", served.workspace.env)
    done = other.shipway("serve", check=False, PREFECT_API_URL=served.address.api)
    assert done.returncode == 64, done.stdout
    assert f"serves another repository, {socket.gethostname()}:{served.workspace.root.resolve()}" in done.stderr


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"overrides": {"train": {"lr": -1}}}, "overrides.train.lr"),
        ({"overrides": {"train": {"lrr": 1}}}, "lrr"),
        ({"stage": "trian"}, "stage"),
        ({"force": "maybe"}, "force"),
        ({"foo": 1}, "foo"),
    ],
)
def test_a_bad_value_is_refused_before_anything_runs(served: Served, parameters: dict[str, object], words: str) -> None:
    with pytest.raises(RefusedByServer, match="409") as refused:
        served.run("train-to-deploy/on-demand", **parameters)
    assert words in str(refused.value)


def test_what_the_form_cannot_see_is_refused_before_the_first_task(served: Served) -> None:
    run = served.run("train-to-deploy/on-demand", overrides={"train": {"momentum": 0.9}})
    inside = served.run("train-to-deploy/on-demand", overrides={"paths": {"production": "inside"}})
    for one, words in ((run, "momentum belongs to optimizer"), (inside, "must lie outside the repository")):
        kind, name, message = served.until_state(one)
        assert (kind, name) == ("FAILED", "Bad parameters")
        assert words in message
        assert served.tasks(one) == {}


def test_a_second_run_waits_visibly_and_cancel_saves_and_leaves_no_process(served: Served) -> None:
    end(served, "sleep")
    run = served.run("train-to-deploy/on-demand", overrides={"train": {"lr": 0.03}})
    until(lambda: served.clone(run).is_dir(), "no clone came")
    stage = until_asleep(served.clone(run))
    family = served.processes()
    assert len(family) >= 4  # The run, the supervisor, DVC, the stage.
    assert served.process is not None
    addresses = {
        end.ip
        for one in [psutil.Process(served.process.pid), *family]
        for connection in one.net_connections("inet")
        for end in (connection.laddr, connection.raddr)
        if end
    }
    assert addresses == {"127.0.0.1"}  # Nothing is told to anybody else.
    second = served.run("train-to-deploy/nightly")
    _, _, message = served.until_state(second, "Waiting")
    assert "another run" in message
    assert not served.clone(second).exists()
    served.set_state(run, "CANCELLING", "Cancelling")
    assert served.until_state(run)[:2] == ("CANCELLED", "Cancelled")
    assert (served.clone(run) / "saved.txt").read_text() == "saved"
    assert not alive(stage)
    until(lambda: not any(alive(one.pid) for one in family), "processes are left")
    assert served.until_state(second)[:2] == ("COMPLETED", "No change")


def test_a_lock_that_somebody_holds_as_a_stage_ends_is_waited_for_and_nothing_runs_twice(served: Served) -> None:
    end(served, "wait")
    run = served.run("train-to-deploy/on-demand", stage="second@b", force=True)
    until(lambda: served.clone(run).is_dir(), "no clone came")
    clone = served.clone(run)
    until_asleep(clone)
    holds = "import sys; from dvc.repo import Repo, lock_repo\nwith Repo() as repo, lock_repo(repo):\n"
    holds += "    print('held', flush=True); sys.stdin.read()"
    env = served.workspace.env
    with subprocess.Popen([sys.executable, "-c", holds], cwd=clone, env=env, stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        (clone / "go").touch()
        time.sleep(6.0)  # DVC by itself would have given up after 3 s, with the result lost.
        assert served.state(run)[0] == "RUNNING"
        assert (clone / "trained.txt").read_text() == "once"
        other.communicate()
    served.until_state(run)
    assert served.state(run)[:2] == ("COMPLETED", "Completed"), served.log.read_text()
    assert served.tasks(run)["second@b"][0] == "Completed"
    end(served, "")


def test_a_stage_that_was_killed_is_tried_again_by_itself(served: Served) -> None:
    end(served, "kill")
    run = served.run("train-to-deploy/on-demand", stage="second@b", force=True)

    def waits() -> bool:
        found = served.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return any(one["name"] == "second@b" and (one["state"] or {}).get("name") == "AwaitingRetry" for one in found)

    until(waits, "second@b is not tried again")
    end(served, "")
    assert served.until_state(run)[0] == "COMPLETED"
    assert served.tasks(run)["second@b"][0] == "Completed"


def test_kill_9_of_the_runs_process_and_retry(served: Served, tmp_path: Path) -> None:
    end(served, "sleep")
    run = served.run("train-to-deploy/on-demand", overrides={"train": {"lr": 0.05}})
    until(lambda: served.clone(run).is_dir(), "no clone came")
    stage = until_asleep(served.clone(run))
    (flow,) = (one for one in served.processes() if "prefect.engine" in one.cmdline())
    flow.kill()
    until(lambda: not alive(stage), "the stage lives on")
    assert (served.clone(run) / "saved.txt").read_text() == "saved"
    assert served.until_state(run)[0] == "CRASHED"
    (served.clone(run) / "saved.txt").unlink()
    (served.clone(run) / "sleeping.pid").unlink()
    end(served, "")
    said = served.workspace.shipway("resume", PREFECT_API_URL=served.address.base).stdout
    assert "(Crashed) goes on" in said
    served.until_state(run, "Completed")
    assert served.tasks(run)["third"][0] == "Completed"
    assert on_branch(served, served.branch(run), "dvc.lock") == unbroken_lock(served, tmp_path, 0.05)


def test_new_data_at_its_source_is_what_the_night_trains_on(served: Served) -> None:
    """The last of them: raw.txt is imported from here on."""
    end(served, "")
    tree, source = served.workspace, served.workspace.root.parent / "source.txt"
    source.write_text("raw")
    tree.git("rm", "-q", "raw.txt")
    tree.dvc("import-url", str(source), "raw.txt")
    tree.git("add", "-A")
    tree.git("commit", "-q", "-m", "raw.txt is imported")
    run = served.run("train-to-deploy/nightly", update_data=True, propose=True)
    assert served.until_state(run)[:2] == ("COMPLETED", "No change")
    source.write_text("new")
    run = served.run("train-to-deploy/nightly", update_data=True, propose=True)
    assert served.until_state(run)[:2] == ("COMPLETED", "Completed")
    assert served.tasks(run)["third"][0] == "Completed"
    tree.shipway("take", served.branch(run))
    assert tree.read("raw.txt") == b"new"
    assert tree.read("artifacts/third/joined.txt") == b"new 0.003new 0.003"
    run = served.run("train-to-deploy/nightly", update_data=True, propose=True)
    assert served.until_state(run)[:2] == ("COMPLETED", "No change")
