"""The supervisor with real processes: whatever happens, nothing is left running."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flows import supervisor
from flows.ends import Refused
from flows.supervisor import Grace
from stages.config.exits import Exit

QUICK = Grace(interrupt_s=1.0, terminate_s=1.0)

STUBBORN = """
import pathlib, signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: print("ignored", signal.Signals(number).name, flush=True))
pathlib.Path("child.pid").write_text(str(__import__("os").getpid()))
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""

SAVES = """
import os, pathlib, signal, subprocess, sys, time
def save(number, frame):
    time.sleep(0.5)
    pathlib.Path("saved.txt").write_text(signal.Signals(number).name)
    sys.exit(75)
signal.signal(signal.SIGINT, save)
code = "import os,time; open('grandchild.pid','w').write(str(os.getpid())); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code])
pathlib.Path("child.pid").write_text(str(os.getpid()))
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""

# What asks for the supervised command, in a process of its own, so that it can be killed.
ASKS = """
import os, sys
from pathlib import Path
from flows import supervisor
running = supervisor.start([sys.executable, "-c", sys.argv[1]], cwd=Path.cwd(), env=os.environ, output=sys.argv[2])
Path("supervisor.pid").write_text(str(running.pid))
print(running.wait(lambda line: print(line, flush=True)))
"""


def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip() != "")
    return int(path.read_text())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def start(code: str, folder: Path, grace: Grace = QUICK) -> supervisor.Running:
    return supervisor.start([sys.executable, "-c", code], cwd=folder, env=os.environ, grace=grace)


def test_exit_code_and_lines_come_through(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    report = supervisor.run([sys.executable, "-u", "-c", code], cwd=tmp_path, env=os.environ, on_line=lines.append)
    assert (report.returncode, report.stopped, report.killed) == (3, None, False)
    assert lines == ["out", "err"] == list(report.tail)


def test_a_command_that_cannot_start_says_so(tmp_path: Path) -> None:
    report = supervisor.run(["/no/such/program"], cwd=tmp_path, env=os.environ, on_line=print)
    assert report.returncode == 127
    assert "No such file" in report.tail[0]


def test_a_stop_lets_the_child_save_and_takes_its_grandchild_along(tmp_path: Path) -> None:
    running = start(SAVES, tmp_path)
    child, grandchild = pid_in(tmp_path / "child.pid"), pid_in(tmp_path / "grandchild.pid")
    report = running.stop()
    assert (tmp_path / "saved.txt").read_text() == "SIGINT"
    assert (report.returncode, report.stopped, report.killed) == (75, "SIGINT", False)
    assert gone(child)
    assert gone(grandchild)


def test_a_child_that_ignores_everything_is_killed_in_time(tmp_path: Path) -> None:
    running = start(STUBBORN, tmp_path)
    child = pid_in(tmp_path / "child.pid")
    began = time.monotonic()
    report = running.stop()
    assert time.monotonic() - began >= 2.0, "each signal had its full grace"
    assert (report.returncode, report.killed) == (-signal.SIGKILL, True)
    assert list(report.tail) == ["ready", "ignored SIGINT", "ignored SIGTERM"]
    assert gone(child)


def test_the_default_grace_ends_inside_30_s() -> None:
    assert Grace().interrupt_s + Grace().terminate_s < 30.0


def test_what_outlives_its_command_is_stopped_even_in_a_session_of_its_own(tmp_path: Path) -> None:
    code = (
        "import subprocess, pathlib; "
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "pathlib.Path('child.pid').write_text(str(p.pid))"
    )
    report = supervisor.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, on_line=print)
    assert (report.returncode, report.stopped) == (0, None)
    assert gone(pid_in(tmp_path / "child.pid"))


def asks(code: str, folder: Path, output: str = "lines") -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", ASKS, code, output], cwd=folder, stdout=subprocess.PIPE)


def test_kill_9_of_the_process_that_asked_stops_the_group_after_a_save(tmp_path: Path) -> None:
    with asks(SAVES, tmp_path) as asking:
        child, grandchild = pid_in(tmp_path / "child.pid"), pid_in(tmp_path / "grandchild.pid")
        asking.kill()
        until(lambda: gone(child) and gone(grandchild) and gone(pid_in(tmp_path / "supervisor.pid")))
    assert (tmp_path / "saved.txt").read_text() == "SIGINT"


def test_sigterm_of_the_process_that_asked_stops_the_group(tmp_path: Path) -> None:
    with asks(SAVES, tmp_path) as asking:
        child = pid_in(tmp_path / "child.pid")
        asking.terminate()
        until(lambda: gone(child) and gone(pid_in(tmp_path / "supervisor.pid")))


def test_an_exception_while_waiting_stops_the_group_first(tmp_path: Path) -> None:
    running = start(SAVES, tmp_path)

    def fail(_line: str) -> None:
        raise RuntimeError("the reader's own fault")

    with pytest.raises(RuntimeError, match="the reader's own fault"):
        running.wait(fail)
    assert (tmp_path / "saved.txt").exists()
    assert gone(pid_in(tmp_path / "child.pid"))
    assert gone(running.pid)


def test_a_killed_supervisor_is_reported_as_lost(tmp_path: Path) -> None:
    running = start("import os, time; open('child.pid','w').write(str(os.getpid())); time.sleep(600)", tmp_path)
    child = pid_in(tmp_path / "child.pid")
    os.kill(running.pid, signal.SIGKILL)
    try:
        os.kill(child, signal.SIGKILL)  # A stage would end by itself: it watches the supervisor.
    finally:
        report = running.wait(print)
    assert report.lost


def test_the_child_is_told_its_supervisor(tmp_path: Path) -> None:
    lines: list[str] = []
    running = start(
        "import os; print(os.environ['SHIPWAY_SUPERVISOR_PID'], os.getppid(), os.getpgrp(), os.getpid())", tmp_path
    )
    running.wait(lines.append)
    told, parent, group, own = map(int, lines[0].split())
    assert told == parent == running.pid
    assert group == own


def test_a_terminal_stays_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    code = "import sys; print(sys.stdout.isatty(), sys.stderr.isatty())"
    with subprocess.Popen([sys.executable, "-c", ASKS, code, "terminal"], cwd=tmp_path, stdout=theirs) as asking:
        asking.wait(20)
    os.close(theirs)
    assert b"True True" in os.read(ours, 4096)
    os.close(ours)


def test_a_called_process_that_is_killed_is_a_stop_with_a_sentence() -> None:
    with pytest.raises(Refused, match="was killed by signal 9") as caught:
        supervisor.call([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert caught.value.code == Exit.STOPPED
    with pytest.raises(BrokenPipeError):
        supervisor.call(["/bin/sh", "-c", "kill -PIPE $$"])
    assert supervisor.call([sys.executable, "-c", "print('said'); raise SystemExit(3)"], capture=True) == (3, "said\n")
