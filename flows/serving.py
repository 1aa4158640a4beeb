"""`shipway serve`: Prefect's server and the process that serves the deployments, for as long as the command lives."""

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from flows import server
from flows.ends import Refused
from flows.workspace import STATE
from stages.config.editing import replace_text
from stages.config.exits import Exit

WEBHOOK_VARIABLE = "SHIPWAY_WEBHOOK"
"""Environment variable with the address that failures, failed gates and questions for approval are sent to."""

_LOCK = STATE / "serve.lock"
_WHERE = STATE / "serving.json"
_SAVE_LIMIT_S = 40.0
"""For the supervisor of a run's stage, which ends inside 30 s."""

_GRACE_S = 5.0
"""For a run that is between two stages, to put its result on a branch."""


def serve(tree: Path, port: int | None, say: Callable[[str], None]) -> int:
    """Serves until it is stopped (Ctrl-C, SIGTERM); then every run has saved and ended. Raises `Refused`."""
    if not (tree / ".git").exists():
        raise Refused(Exit.PARAMS, f"served runs need a git repository, {tree} is none; `git init`, then commit")
    own_server = server.given() is None
    with _only_one(tree), server.api(tree, say, port=port, on_lost=_give_up(tree, say)) as address:
        from flows import deployments  # Prefect takes seconds to import, and reads its environment then.

        replace_text(tree / _WHERE, json.dumps({"api": address.api, "process": os.getpid()}) + "\n")
        try:
            with _plain_signals():
                deployments.serve_all(tree, own_server=own_server, say=say)
        finally:
            (tree / _WHERE).unlink(missing_ok=True)
    say("stopped; nothing is left running")
    return Exit.DONE


def require_webhook() -> None:
    """Raises `Refused` for a SHIPWAY_WEBHOOK that is no address: nobody would be told of anything."""
    url = os.environ.get(WEBHOOK_VARIABLE)
    parts = urlsplit(url) if url else None
    if parts is not None and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise Refused(Exit.PARAMS, f"{WEBHOOK_VARIABLE} must be an address (http:// or https://), got {url!r}")


@contextmanager
def _only_one(tree: Path) -> Iterator[None]:
    (tree / STATE).mkdir(exist_ok=True)
    with (tree / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            address = served_at(tree)
            where = address.base if address else "an address that is just being set up or given up"
            raise Refused(Exit.PARAMS, f"this repository is served already, at {where}; stop that one first") from None
        yield


def _give_up(tree: Path, say: Callable[[str], None]) -> Callable[[str], None]:
    """What to do when our own server is gone: nobody could see or cancel what runs, and Prefect waits for it."""

    def give_up(why: str) -> None:
        say(f"{why}; stopping: runs save, and go on by `shipway resume` once this is served again")
        runs = psutil.Process().children()
        below = [process for run in runs for process in _below(run)]
        for run in runs:
            run.terminate()
        psutil.wait_procs(below, timeout=_SAVE_LIMIT_S)
        for run in psutil.wait_procs(runs, timeout=_GRACE_S)[1]:
            run.kill()  # It has saved, and asks a server that is not there.
        (tree / _WHERE).unlink(missing_ok=True)
        os._exit(Exit.STOPPED)

    return give_up


def _below(run: psutil.Process) -> list[psutil.Process]:
    try:
        return run.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def _plain_signals() -> Iterator[None]:
    """Inside, a stop is Prefect's: it ends the runs, and returns."""
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Until Prefect puts its own in its place.
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def served_at(tree: Path) -> server.Address | None:
    """The server where this repository is served, or None."""
    try:
        told = json.loads((tree / _WHERE).read_text("utf-8"))
        os.kill(int(told["process"]), 0)
    except (OSError, ValueError, KeyError):
        return None
    return server.Address(str(told["api"]).removesuffix("/api"))
