"""Files: canonical JSON, atomic and durable writes, digests."""

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

IDENTITY_FILE = "identity.json"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes atomically and durably: temporary file, fsync, rename, fsync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # A failed write names no file by itself.
        raise
    finally:
        with suppress(OSError):  # What went wrong before says more.
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Readable JSON with sorted keys and a final newline; written as by `write_bytes`. NaN is refused."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_bytes(content: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(path: Path) -> Iterator[Path]:
    """The files below a folder in sorted order (or the file itself), without what .dvcignore leaves out too."""
    if path.is_file():
        yield path
        return
    for child in sorted(path.rglob("*")):
        if (
            child.is_file()
            and "__pycache__" not in child.parts
            and child.suffix != ".pyc"
            and child.name != ".DS_Store"
        ):
            yield child


def digest(path: Path, *, with_identity: bool = True) -> str:
    """Hex SHA-256 of a file, or of a folder's names and contents.

    `with_identity=False` leaves the folder's identity.json out: what the artifact *contains*, whoever made it.
    Raises `FileNotFoundError` when there is nothing at `path`.
    """
    if path.is_file():
        return sha256_file(path)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    lines = [
        f"{child.relative_to(path).as_posix()}\0{sha256_file(child)}\n"
        for child in files_below(path)
        if with_identity or child.name != IDENTITY_FILE
    ]
    return sha256_bytes("".join(lines).encode())
