"""The supervising process: `python supervisor_process.py ORDER` (JSON, written by flows/supervisor.py).

Owns life and death of one command and of everything that it starts. Free of the project's own imports: it is run by
path, so that nothing that fails to import can keep it from doing its work.
"""

import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from contextlib import suppress
from types import FrameType
from typing import Any

import psutil

SUPERVISOR_VARIABLE = "SHIPWAY_SUPERVISOR_PID"
"""Read by stages/runtime/stopping.py: DVC passes no pipe on to a stage, so a stage watches this process id."""

_TICK_S = 0.1
_LINGER_S = 2.0
"""What may outlive its command before it is stopped: a library's helper process on its way out."""
_LINGER_GRACE_S = 2.0
"""Between the signals to what outlived its command: it has nothing to save."""
_TAIL_LINES = 40
_TAIL_LINE_LENGTH = 200
"""Together below what a pipe holds, since the report is read after this process has ended."""
_READER_S = 30.0
"""How long a reader may take for the last lines."""
_PR_SET_CHILD_SUBREAPER = 36
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Group:
    """The command's process group, and the descendants that left it."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self.child = child

    def alive(self) -> list[psutil.Process]:
        """Every living process that the command has left or still is."""
        below = psutil.Process().children(recursive=True)
        known = {process.pid for process in below}
        found = []
        for process in [*below, *(p for p in psutil.process_iter() if p.pid not in known and self._has(p.pid))]:
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _has(self, pid: int) -> bool:
        with suppress(ProcessLookupError, PermissionError):
            return os.getpgid(pid) == self.child.pid
        return False

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all of them, each once."""
        outside = [process.pid for process in self.alive() if not self._has(process.pid)]
        for send, target in [(os.killpg, self.child.pid), *((os.kill, pid) for pid in outside)]:
            with suppress(ProcessLookupError, PermissionError):
                send(target, number)


class Ladder:
    """SIGINT, then SIGTERM, then SIGKILL, each when its time has come."""

    def __init__(self, group: Group, interrupt_s: float, terminate_s: float) -> None:
        now = time.monotonic()
        self._group = group
        self._rungs = deque(
            [
                (now, signal.SIGINT),
                (now + interrupt_s, signal.SIGTERM),
                (now + interrupt_s + terminate_s, signal.SIGKILL),
            ]
        )
        self.killed = False

    def climb(self) -> None:
        """Sends the signals that are due."""
        while self._rungs and time.monotonic() >= self._rungs[0][0]:
            number = self._rungs.popleft()[1]
            self._group.signal(number)
            if number == signal.SIGKILL:
                self.killed = True
                self._rungs.append((time.monotonic() + 1.0, number))  # Again, for what was just being forked.


class Pump(threading.Thread):
    """Copies the command's output to this process's stdout, and keeps the last lines.

    The copy may fail (the reader has died): the command never sees that, so that it can still save and end.
    """

    def __init__(self, source: int) -> None:
        super().__init__(daemon=True, name="pump")
        self._source = source
        self._kept = b""
        self._broken = False

    def run(self) -> None:
        """Copies until the last writer has closed."""
        while content := self._read():
            self._kept = (self._kept + content)[-_TAIL_LINES * _TAIL_LINE_LENGTH :]
            while content and not self._broken:
                try:
                    content = content[os.write(1, content) :]
                except OSError:
                    self._broken = True

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 65536)
        except OSError:  # A pseudo-terminal ends with EIO.
            return b""

    def tail(self) -> list[str]:
        """The last lines, without colours and without what a progress bar has overwritten."""
        text = _COLOURS.sub("", self._kept.decode("utf-8", errors="replace"))
        lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
        return [line[:_TAIL_LINE_LENGTH] for line in lines if line][-_TAIL_LINES:]


class Supervisor:
    """Starts the command, and sees to its end."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._reason: str | None = None
        self._terminal: int | None = None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._reason = self._reason or signal.Signals(number).name

    def run(self) -> dict[str, Any]:
        """Returns the report."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # Writing to the terminal from the background is intended.
        _adopt_orphans()
        child, pump = self._start()
        group = Group(child)
        ladder = self._until_child_ends(child, group)
        ladder = self._until_group_ends(group, ladder)
        pump.join(timeout=_READER_S)
        return {
            "returncode": child.returncode,
            "stopped": self._reason,
            "killed": ladder is not None and ladder.killed,
            "tail": pump.tail(),
        }

    def _start(self) -> "tuple[subprocess.Popen[bytes], Pump]":
        if self._order["terminal"]:
            read_end, write_end = os.openpty()
            self._terminal = read_end
            self._copy_size()
        else:
            read_end, write_end = os.pipe()
        child = subprocess.Popen(
            self._order["command"],
            stdin=subprocess.DEVNULL,  # A read from the terminal would stop a background process for ever.
            stdout=write_end,
            stderr=write_end,
            env={**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())},
            pass_fds=self._order["hold"],
            process_group=0,
        )
        os.close(write_end)
        pump = Pump(read_end)
        pump.start()
        return child, pump

    def _copy_size(self) -> None:
        """The window's size, so that progress bars fit; again and again, since it may change."""
        if self._terminal is not None:
            with suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, fcntl.ioctl(1, termios.TIOCGWINSZ, b"\0" * 8))

    def _look_around(self) -> None:
        self._copy_size()
        if os.getppid() != self._order["parent"]:
            self._reason = self._reason or "the process that started it has died"

    def _until_child_ends(self, child: "subprocess.Popen[bytes]", group: Group) -> Ladder | None:
        ladder = None
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=_TICK_S)
                return ladder
            self._look_around()
            if self._reason is not None:
                ladder = ladder or Ladder(group, self._order["interrupt_s"], self._order["terminate_s"])
                ladder.climb()

    def _until_group_ends(self, group: Group, ladder: Ladder | None) -> Ladder | None:
        lingering_until = time.monotonic() + _LINGER_S
        while group.alive():
            self._look_around()
            if ladder is None and (self._reason is not None or time.monotonic() >= lingering_until):
                ladder = Ladder(group, _LINGER_GRACE_S, _LINGER_GRACE_S)
            if ladder is not None:
                ladder.climb()
            time.sleep(_TICK_S / 2)
        _reap()
        return ladder


def _adopt_orphans() -> None:
    """Linux: what the command leaves behind becomes a child of this process, even out of its group and session."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap() -> None:
    """Takes adopted orphans off the process table: in a container, nobody else may do it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    """Runs the order and reports through the pipe that it names."""
    order = json.loads(sys.argv[1])
    os.set_inheritable(order["report"], False)
    try:
        report = Supervisor(order).run()
    except OSError as error:  # The command cannot be started.
        report = {"returncode": 127, "stopped": None, "killed": False, "tail": [f"{order['command'][0]}: {error}"]}
    with suppress(OSError):
        os.write(order["report"], json.dumps(report, ensure_ascii=False).encode())
    os._exit(0)  # The pump may still wait for a reader that never comes.


if __name__ == "__main__":
    main()
