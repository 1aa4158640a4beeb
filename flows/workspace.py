"""The working tree: is it one of Shipway's, can it be written, and does another run work in it."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.ends import Refused
from stages.config.exits import Exit

STATE = Path(".shipway")
_LOCK = STATE / "run.lock"
_PROBE_BYTES = 64 * 1024
_WRITTEN = (Path("artifacts"), STATE, Path(".dvc"), Path(".dvc/tmp"), Path(".dvc/cache"))
_WAIT_LIMIT_S = 3600.0
_LOOK_S = 0.5
_SAY_EVERY_S = 60.0
_held: list[int] = []


def root() -> Path:
    """The repository's root, which must be the current folder. Raises `Refused`."""
    here = Path.cwd()
    if _is_root(here):
        return here
    for parent in here.parents:
        if _is_root(parent):
            raise Refused(Exit.PARAMS, f"run from the root of the repository: cd {parent}")
    missing = [name for name in ("dvc.yaml", "params.yaml") if not (here / name).is_file()]
    raise Refused(
        Exit.PARAMS,
        f"{here} is no Shipway repository ({' and '.join(missing)} missing); go into your clone and run again",
    )


def _is_root(folder: Path) -> bool:
    return (folder / "dvc.yaml").is_file() and (folder / "params.yaml").is_file()


def check_writable(tree: Path) -> None:
    """Looks, before DVC deletes anything, that what a run writes can be written. Raises `Refused`."""
    _probe(tree, tree)
    for folder in _WRITTEN:
        if folder.parts[0] != ".dvc":  # It belongs to DVC, which says what is wrong when it is missing.
            _make(tree / folder, tree)
        if (tree / folder).is_dir():
            _probe(tree / folder, tree)


def _make(folder: Path, tree: Path) -> None:
    name = folder.relative_to(tree)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise Refused(Exit.DISK, f"{name} must be a folder, but a file is in its place; move it away") from None
    except OSError as error:
        raise Refused(Exit.DISK, f"cannot make the folder {name}: {error.strerror}; free space or allow it") from None


def _probe(folder: Path, tree: Path) -> None:
    probe = folder / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(b"\0" * _PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        name = folder.relative_to(tree).as_posix()
        where = "the repository's folder" if name == "." else f"the folder {name}"
        raise Refused(
            Exit.DISK, f"cannot write into {where}: {error.strerror}; free space or fix its permissions, then run again"
        ) from None
    finally:
        with suppress(OSError):  # What went wrong before says more.
            probe.unlink(missing_ok=True)


@contextmanager
def only_run(tree: Path, say: Callable[[str], None], limit_s: float = _WAIT_LIMIT_S) -> Iterator[None]:
    """Lets one run at a time into this working tree; a second one waits and says so. Raises `Refused`.

    Inside, it may be entered again.
    """
    if _held:
        yield
        return
    (tree / STATE).mkdir(exist_ok=True)
    descriptor = os.open(tree / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(descriptor, say, limit_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        _held.append(descriptor)
        yield
    finally:
        _held.clear()
        os.close(descriptor)


def held() -> tuple[int, ...]:
    """The lock's file descriptor inside `only_run`: a process that inherits it holds the lock until its own end."""
    return tuple(_held)


def _take(descriptor: int, say: Callable[[str], None], limit_s: float) -> None:
    began = time.monotonic()
    said = float("-inf")
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        else:
            return
        waited = time.monotonic() - began
        if waited >= limit_s:
            raise Refused(
                Exit.STOPPED, f"another run (process {holder}) still works here after {waited:.0f} s; try later"
            )
        if time.monotonic() - said >= _SAY_EVERY_S:
            said = time.monotonic()
            how = "to leave: Ctrl-C, or Cancel in the UI"
            say(f"another run (process {holder}) works in this folder; waiting for it to end ({how})")
        time.sleep(_LOOK_S)
