"""The only starter of processes. What is started here is never left behind.

Each command runs under a small process of its own (`flows/supervisor_process.py`), which starts it in its own process
group, forwards a stop as SIGINT, then SIGTERM, then SIGKILL to the whole group inside 30 s, and stops the group when
the process that asked for it dies.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.ends import Refused
from stages.config.exits import Exit

_PROCESS = Path(__file__).with_name("supervisor_process.py")
_MARGIN_S = 5.0


@dataclass(frozen=True)
class Grace:
    """How long a stopped group may take: together below 30 s."""

    interrupt_s: float = 18.0
    """From SIGINT (save and end) to SIGTERM."""

    terminate_s: float = 8.0
    """From SIGTERM to SIGKILL."""


@dataclass(frozen=True)
class Report:
    """How a supervised command ended."""

    returncode: int
    """Its exit code; negative: the signal that killed it."""

    stopped: str | None = None
    """Why the group was stopped, where it was."""

    killed: bool = False
    """SIGKILL was needed."""

    tail: tuple[str, ...] = ()
    """Its last lines (stdout and stderr together), without colours."""

    lost: bool = False
    """The supervisor itself was killed: nothing is known of the end."""


class Running:
    """A command under its supervisor."""

    def __init__(self, process: "subprocess.Popen[bytes]", report: int, grace: Grace) -> None:
        self._process = process
        self._report = report
        self._limit_s = grace.interrupt_s + grace.terminate_s + _MARGIN_S
        self._ended: Report | None = None

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """True while the supervisor runs."""
        return self._process.poll() is None

    def wait(self, on_line: Callable[[str], None] | None = None) -> Report:
        """Waits for the end and hands on each line. Whatever interrupts the wait stops the command first."""
        try:
            if self._process.stdout is not None:
                for line in self._process.stdout:
                    if on_line is not None:
                        on_line(_text(line))
            self._process.wait()
        except BaseException:  # A signal's exception, too: nothing may be left running behind it.
            self.stop()
            raise
        return self._read_report()

    def stop(self) -> Report:
        """Stops the group, inside the grace. More signals meanwhile change nothing: a checkpoint may be half-way."""
        deadline = time.monotonic() + self._limit_s
        self._process.send_signal(signal.SIGINT)
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(BaseException):  # The exception of a second signal must not leave the group alone half-way.
                self._process.communicate(timeout=deadline - time.monotonic())
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        return self._read_report()

    def _read_report(self) -> Report:
        if self._ended is None:
            with os.fdopen(self._report, "rb") as pipe:
                content = pipe.read()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._ended = _parse(content) if content else Report(self._process.returncode, lost=True)
        return self._ended


def _parse(content: bytes) -> Report:
    fields: dict[str, Any] = json.loads(content)
    return Report(**{**fields, "tail": tuple(fields["tail"])})


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r\n")


def start(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: str = "lines",
    log: Path | None = None,
    hold: Sequence[int] = (),
    grace: Grace | None = None,
) -> Running:
    """Starts a command under a supervisor.

    `output`: "lines" (to be read by `wait`), "terminal" (shown where this process shows; a terminal stays one, so that
    progress bars work) or "log" (written to the file `log`). `hold`: file descriptors of locks that are to be held
    as long as the command lives, whatever becomes of this process.
    """
    grace = grace or Grace()
    read_end, write_end = os.pipe()
    order = {
        "command": list(command),
        "parent": os.getpid(),
        "report": write_end,
        "terminal": output == "terminal" and sys.stdout.isatty(),
        "hold": list(hold),
        **asdict(grace),
    }
    sys.stdout.flush()
    to = {"lines": subprocess.PIPE, "terminal": None}.get(output)
    file = log.open("ab") if log is not None else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", str(_PROCESS), json.dumps(order)],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=file or to,
            stderr=subprocess.STDOUT if file or to else None,
            pass_fds=(write_end, *hold),
            process_group=0,  # The terminal's Ctrl-C reaches this process only, which forwards it once.
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
        if file is not None:
            file.close()
    return Running(process, read_end, grace)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
    hold: Sequence[int] = (),
    grace: Grace | None = None,
) -> Report:
    """Starts a command and waits for its end: line by line to `on_line`, or else shown on the terminal."""
    output = "terminal" if on_line is None else "lines"
    return start(command, cwd=cwd, env=env, output=output, hold=hold, grace=grace).wait(on_line)


def call(command: Sequence[str], *, cwd: Path | None = None, capture: bool = False) -> tuple[int, str]:
    """Runs a short command of this project in the foreground: exit code, and what it printed when captured.

    It belongs to this process's group: Ctrl-C reaches it directly. Raises `Refused` (exit 75) when a signal
    killed it, and `BrokenPipeError` when nobody read its output.
    """
    sys.stdout.flush()
    return _ended(subprocess.run(list(command), cwd=cwd, stdout=subprocess.PIPE if capture else None, check=False))[:2]


def call_and_hear(command: Sequence[str], *, cwd: Path) -> tuple[int, str, str]:
    """As `call`, captured, with what the command said on stderr."""
    return _ended(subprocess.run(list(command), cwd=cwd, capture_output=True, check=False))


def _ended(done: "subprocess.CompletedProcess[bytes]") -> tuple[int, str, str]:
    if done.returncode == -signal.SIGPIPE:
        raise BrokenPipeError  # `shipway show | head`: nobody reads any more.
    if done.returncode < 0:
        raise Refused(Exit.STOPPED, _killed(done.args, -done.returncode))
    printed, said = ((text or b"").decode("utf-8", errors="replace") for text in (done.stdout, done.stderr))
    return done.returncode, printed, said


def _killed(command: Sequence[str], number: int) -> str:
    what = " ".join([Path(command[0]).name, *command[1:4]])
    return f"{what} was killed by signal {number} (9: often out of memory); run the same command again"
