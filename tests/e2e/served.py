"""A served repository for the tests: `shipway serve` as a process, and what a person asks of Prefect's API."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows import server
from tests.conftest import Workspace

LIMIT_S = 240.0
"""For anything that is waited for: far more than a busy machine needs."""

_BUSY = 503
"""What the server answers while its database is busy; Prefect's own clients try again, too."""

_TRIES = 10
_SERVES = "serving train-to-deploy/on-demand"
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class RefusedByServer(Exception):
    """The API's answer to a request that it refuses."""


@dataclass
class Served:
    """`shipway serve` of a workspace, on a server."""

    workspace: Workspace
    address: server.Address
    env: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    port: int | None = None
    """Of a server of its own; None: it uses the one at `address`."""

    @property
    def log(self) -> Path:
        """What `shipway serve` prints."""
        return self.workspace.root.parent / "serve.log"

    def start(self) -> None:
        """Starts it and waits until it serves."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", "serve", *(["--port", str(self.port)] if self.port else [])],
                cwd=self.workspace.root,
                env=self.workspace.env | ({} if self.port else {"PREFECT_API_URL": self.address.api}) | self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        process = self.process
        until(lambda: _SERVES in self.log.read_text() or process.poll() is not None, "serve did not start")
        assert _SERVES in self.log.read_text(), self.log.read_text()

    def stop(self) -> str:
        """Ends it as Ctrl-C does; what it printed."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=LIMIT_S)
        return self.log.read_text()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST where there is a body, else GET. Raises `RefusedByServer`."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 -- the tests' own server
            f"{self.address.api}/{path}", content, {"Content-Type": "application/json"}
        )
        for left in reversed(range(_TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != _BUSY or not left:
                    raise RefusedByServer(f"{error.code} {error.read().decode()}") from None
                time.sleep(1.0)
        return None

    def run(self, deployment: str, **parameters: Any) -> str:
        """Starts a run by the API; its id."""
        found = self.ask(f"deployments/name/{deployment}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.ask(f"deployments/{found['id']}/create_flow_run", body)["id"])

    def state(self, run: str) -> tuple[str, str, str]:
        """Type, name and message of a run's state."""
        found = self.ask(f"flow_runs/{run}")["state"]
        return found["type"], found["name"], found["message"] or ""

    def until_state(self, run: str, *names: str) -> tuple[str, str, str]:
        """Waits until the run's state has one of these names (or, without names, is final)."""

        def reached() -> bool:
            kind, name, _ = self.state(run)
            return name in names if names else kind in FINAL

        until(reached, lambda: f"{self.state(run)}\n{self.log.read_text()[-4000:]}")
        return self.state(run)

    def set_state(self, run: str, kind: str, name: str) -> None:
        """As the UI's buttons do: Cancel (CANCELLING), Retry (SCHEDULED, AwaitingRetry)."""
        self.ask(f"flow_runs/{run}/set_state", {"state": {"type": kind, "name": name}, "force": True})

    def tasks(self, run: str) -> dict[str, tuple[str, str]]:
        """Name and message of the newest state of each task of a run that has ended, by name, in their order."""

        def newest() -> dict[str, dict[str, Any]]:
            found = self.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
            ordered = sorted(found, key=lambda task: task["start_time"] or task["created"])
            return {task["name"]: task["state"] or {} for task in ordered}

        found: dict[str, dict[str, Any]] = {}

        def ended() -> bool:
            found.clear()
            found.update(newest())
            return all(state.get("type") in FINAL for state in found.values())

        until(ended, lambda: str(found))  # The server hears of tasks by events, a little later than of the run.
        return {name: (state["name"], state["message"] or "") for name, state in found.items()}

    def clone(self, run: str) -> Path:
        """The run's clone."""
        return self.workspace.root / ".shipway/clones" / run

    def branch(self, run: str) -> str:
        """The branch of a run that is done."""
        return str(self.state(run)[2].split("on branch ")[1].split(";")[0])

    def processes(self) -> list[psutil.Process]:
        """All that lives below `shipway serve`."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def serving(workspace: Workspace, address: server.Address, **env: str) -> Iterator[Served]:
    """Serves a workspace inside the block."""
    served = Served(workspace, address, env)
    served.start()
    try:
        yield served
    finally:
        said = served.stop()
    assert said.endswith("stopped; nothing is left running\n")


def until(reached: Callable[[], bool], otherwise: str | Callable[[], str], limit_s: float = LIMIT_S) -> None:
    """Waits until something holds; fails with `otherwise`."""
    deadline = time.monotonic() + limit_s
    while not reached():
        assert time.monotonic() < deadline, otherwise if isinstance(otherwise, str) else otherwise()
        time.sleep(0.2)


def until_asleep(folder: Path) -> int:
    """Waits until `second@b` of a small pipeline sleeps; its process id."""
    path = folder / "sleeping.pid"
    until(lambda: path.is_file() and bool(path.read_text()), f"{path} did not come")
    return int(path.read_text())


def alive(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    try:
        os.kill(pid, 0)
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
