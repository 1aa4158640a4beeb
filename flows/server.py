"""Prefect's own server on 127.0.0.1 for as long as it is needed, or the one that PREFECT_API_URL names."""

import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from flows import supervisor
from flows.dvc_faults import DISK_WORDS
from flows.ends import Refused
from flows.workspace import STATE
from stages.config.exits import Exit

HOST = "127.0.0.1"
START_LIMIT_S = 180.0
_ANSWER_LIMIT_S = 5.0
_POLL_S = 0.2
_LOOK_S = 1.0
_LAST_LINES = 4
_GRACE = supervisor.Grace(interrupt_s=10.0, terminate_s=5.0)

NO_TELEMETRY = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class Address:
    """Where a server answers."""

    base: str

    @property
    def api(self) -> str:
        """For PREFECT_API_URL."""
        return f"{self.base}/api"

    def healthy(self) -> bool:
        """True when the API answers."""
        # No proxy: the address is this machine, or one that the user names in full.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.api}/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError, ValueError):
            return False


def client_environment(home: Path, address: Address) -> dict[str, str]:
    """What a process needs to talk to a server of ours; read by Prefect when it is imported."""
    return {**NO_TELEMETRY, "PREFECT_HOME": str(home), "PREFECT_API_URL": address.api, **_no_proxy()}


def _no_proxy() -> dict[str, str]:
    """Both spellings, what the user excepts kept: Python prefers the lower-case one, other tools the upper-case one."""
    either = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    names = [name.strip() for name in (either or "").split(",")]
    hosts = ",".join(dict.fromkeys(filter(None, [*names, HOST, "localhost"])))
    return {"no_proxy": hosts, "NO_PROXY": hosts}


def server_environment(home: Path, port: int) -> dict[str, str]:
    """The environment of the server: its state below `home`, and an UI that calls the right port."""
    address = Address(f"http://{HOST}:{port}")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_API_")}
    return {
        **inherited,
        **client_environment(home, address),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_API_URL": address.api,
    }


@contextmanager
def started(home: Path, port: int | None = None, on_lost: Callable[[str], None] | None = None) -> Iterator[Address]:
    """Starts a server on a port (a free one if left out), waits until it answers, and stops it at the end.

    `on_lost` is called, in a thread of its own, when the server ends by itself; its argument says so. Raises `Refused`.
    """
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    port = free_port() if port is None else _unused(port)
    address = Address(f"http://{HOST}:{port}")
    log = home / "server.log"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]
    running = supervisor.start(
        command, cwd=home, env=server_environment(home, port), output="log", log=log, grace=_GRACE
    )
    try:
        _wait_until_healthy(address, running.alive, START_LIMIT_S, log)
        with _watched(running, on_lost, log) if on_lost else nullcontext():
            yield address
    finally:
        running.stop()


@contextmanager
def _watched(running: supervisor.Running, on_lost: Callable[[str], None], log: Path) -> Iterator[None]:
    left = threading.Event()

    def watch() -> None:
        while not left.wait(_LOOK_S):
            if not running.alive():
                on_lost(f"Prefect's server has ended; its last words: {_last_words(log)} (all in {log})")
                return

    threading.Thread(target=watch, daemon=True, name="server-watch").start()
    try:
        yield
    finally:
        left.set()


def _wait_until_healthy(address: Address, alive: Callable[[], bool], limit_s: float, log: Path) -> None:
    deadline = time.monotonic() + limit_s
    while not address.healthy():
        if not alive() or time.monotonic() > deadline:
            what = f"did not answer within {limit_s:.0f} s" if alive() else "ended at once"
            words = _last_words(log)
            code = Exit.DISK if any(fault in words for fault in DISK_WORDS) else Exit.BUG
            raise Refused(code, f"Prefect's server {what}; its last words: {words} (all in {log})")
        time.sleep(_POLL_S)


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:]) or "none"


def _unused(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise Refused(
                Exit.PARAMS, f"port {port} must be free: {error.strerror}; stop what uses it, or give another --port"
            ) from None
    return port


def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def api(
    tree: Path,
    say: Callable[[str], None],
    port: int | None = None,
    on_lost: Callable[[str], None] | None = None,
) -> Iterator[Address]:
    """Prefect's API for this process: the server of PREFECT_API_URL, or one of our own. Raises `Refused`.

    Must be entered before Prefect is imported. `on_lost`: as for `started`, of one of our own.
    """
    address = given()
    if address is not None:
        require_given()
        with _environment({**NO_TELEMETRY, "PREFECT_HOME": str(_home(tree)), "PREFECT_API_URL": address.api}):
            say(f"Prefect: {address.base} (from PREFECT_API_URL)")
            yield address
        return
    home = (tree / STATE / "prefect").resolve()
    say("starting Prefect's server (10 to 20 s the first time) ...")
    with started(home, port, on_lost) as address, _environment(client_environment(home, address)):
        say(f"Prefect: {address.base} (open it in a browser while the run lasts)")
        yield address


def given() -> Address | None:
    """The server of PREFECT_API_URL, with or without `/api` at its end."""
    url = os.environ.get("PREFECT_API_URL")
    return Address(url.rstrip("/").removesuffix("/api")) if url else None


@contextmanager
def client_of(tree: Path, address: Address) -> Iterator[None]:
    """For a process that talks to a server which is there already; to be entered before Prefect is imported."""
    _require_answer(address)
    values = {**NO_TELEMETRY, "PREFECT_HOME": str(_home(tree)), "PREFECT_API_URL": address.api, **_no_proxy()}
    with _environment(values):
        yield


def _home(tree: Path) -> Path:
    """Where Prefect keeps its state: the user's own place where there is one (it may hold a key), else below `tree`."""
    users = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    return users if users.is_dir() else (tree / STATE / "prefect").resolve()


def require_given() -> None:
    """Raises `Refused` where PREFECT_API_URL names a server and none answers."""
    address = given()
    if address is not None:
        _require_answer(address)


def _require_answer(address: Address) -> None:
    deadline = time.monotonic() + _ANSWER_LIMIT_S
    while not address.healthy():
        if time.monotonic() > deadline:
            if address == given():
                url = os.environ["PREFECT_API_URL"]
                where = f"PREFECT_API_URL={url}; start it, or unset PREFECT_API_URL to use one of Shipway's own"
            else:
                where = f"{address.api}, where this repository is served; stop `make serve` and start it again"
            raise Refused(Exit.PARAMS, f"no Prefect server answers at {where}")
        time.sleep(_POLL_S)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
