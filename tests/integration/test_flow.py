"""The pipeline as a Prefect flow: real server, real DVC; the same dvc.lock and the same exit codes as without."""

import json
import shutil
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows import server
from tests.conftest import Workspace
from tests.tiny import begin, make_second_stale, until_gone, until_sleeping

pytestmark = pytest.mark.integration


def ask(address: server.Address, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(  # noqa: S310 -- the tests' own server
        f"{address.api}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def latest_run(address: server.Address) -> dict[str, Any]:
    """The state of the newest flow run and of its tasks, by name, in their order; served runs do not count."""
    here = {"deployment_id": {"is_null_": True}}
    run = ask(address, "flow_runs/filter", {"flow_runs": here, "sort": "START_TIME_DESC", "limit": 1})[0]
    wanted = {"flow_runs": {"id": {"any_": [run["id"]]}}, "sort": "EXPECTED_START_TIME_ASC"}
    tasks = sorted(ask(address, "task_runs/filter", wanted), key=lambda task: task["start_time"] or "")
    return {
        "state": (run["state"]["type"], run["state"]["name"], run["state"]["message"]),
        "tasks": {task["name"]: (task["state"]["name"], task["state"]["message"]) for task in tasks},
    }


def through(workspace: Workspace, address: server.Address, *arguments: str, code: int = 0, **extra: str) -> str:
    """`shipway run --prefect` on the tests' own server."""
    result = workspace.shipway("run", "--prefect", *arguments, check=False, PREFECT_API_URL=address.api, **extra)
    said = result.stdout + result.stderr
    assert result.returncode == code, said
    assert "Traceback" not in said
    assert "NoneType" not in said
    assert "Error logging to API" not in said
    return said


def test_the_flow_ends_in_the_same_lock_as_a_plain_run(tiny: Workspace, prefect_server: server.Address) -> None:
    lock = tiny.read("dvc.lock")
    (tiny.root / "dvc.lock").unlink()
    shutil.rmtree(tiny.root / "artifacts")
    shutil.rmtree(tiny.root / ".dvc/cache")
    said = through(tiny, prefect_server)
    assert "THE TABLE" in said
    assert tiny.read("dvc.lock") == lock
    run = latest_run(prefect_server)
    assert run["state"][0] == "COMPLETED"
    assert list(run["tasks"]) == ["first", "second@a", "second@b", "third"]
    assert run["tasks"]["first"] == ("Completed", "lr is 0.003")


def test_what_is_up_to_date_or_restored_is_shown_as_cached(tiny: Workspace, prefect_server: server.Address) -> None:
    lock = tiny.read("dvc.lock")
    shutil.rmtree(tiny.root / "artifacts/second/a")
    through(tiny, prefect_server, "second@a")
    assert latest_run(prefect_server)["tasks"] == {
        "first": ("Cached", "up to date"),
        "second@a": ("Cached", "DVC found nothing to run"),
    }
    assert tiny.read("dvc.lock") == lock


def test_a_failed_gate_is_a_failed_task_with_the_gates_own_sentence_and_force_runs_all(
    tiny: Workspace, prefect_server: server.Address
) -> None:
    lock = tiny.read("dvc.lock")
    said = through(tiny, prefect_server, "--force", code=3, TINY_END="GateFailed")
    assert "second@b: a gate failed (exit 3): the sentence of GateFailed" in said
    assert latest_run(prefect_server) == {
        "state": ("FAILED", "Gate failed", "the sentence of GateFailed"),
        "tasks": {
            "first": ("Completed", "lr is 0.003"),
            "second@a": ("Completed", "copied to a; a terminal: False"),
            "second@b": ("Gate failed", "the sentence of GateFailed"),
        },
    }
    assert tiny.read("dvc.lock") == lock


def test_an_unknown_stage_is_a_failed_run_before_anything_runs(tiny: Workspace, prefect_server: server.Address) -> None:
    code = "from flows import train_to_deploy; print(int(train_to_deploy.run_here('frist', False).code))"
    done = tiny.python("-c", code, PREFECT_API_URL=prefect_server.api, PREFECT_HOME=str(tiny.root / ".shipway/prefect"))
    assert done.stdout.splitlines()[-1] == "64"
    assert "Traceback" not in done.stderr
    kind, name, message = latest_run(prefect_server)["state"]
    assert (kind, name) == ("FAILED", "Bad parameters")
    assert message.startswith("no stage is named 'frist'; did you mean 'first'?")


def test_no_server_at_the_given_address_is_said(tiny: Workspace) -> None:
    make_second_stale(tiny)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api"
    before = tiny.read("params.yaml")
    said = tiny.shipway("run", "--prefect", "--set", "seed=5", check=False, PREFECT_API_URL=url)
    assert said.returncode == 64
    assert tiny.read("params.yaml") == before
    assert f"no Prefect server answers at PREFECT_API_URL={url}" in said.stderr


def test_a_server_of_its_own_talks_to_this_machine_only_and_a_stop_leaves_nothing(tiny: Workspace) -> None:
    make_second_stale(tiny)
    with begin(tiny, "flows.cli", "run", "--prefect", TINY_END="sleep") as process:
        until_sleeping(tiny)
        family = psutil.Process(process.pid).children(recursive=True)
        addresses = {
            end.ip
            for member in [psutil.Process(process.pid), *family]
            for connection in member.net_connections("inet")
            for end in (connection.laddr, connection.raddr)
            if end
        }
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[0]
    assert process.returncode == 75, said
    assert "Traceback" not in said
    assert "Crash" not in said
    assert "Finished in state Stopped" in said
    assert (tiny.root / "saved.txt").exists()
    assert addresses == {"127.0.0.1"}
    assert len(family) >= 4  # Server and DVC, each under its supervisor, and the stage.
    for member in family:
        until_gone(member.pid)
    assert (tiny.root / ".shipway/prefect/prefect.db").exists()


def test_the_home_folder_is_left_alone(tiny: Workspace) -> None:
    """After all of the above, which share one home."""
    assert sorted(map(str, Path(tiny.env["HOME"]).rglob("*"))) == []
