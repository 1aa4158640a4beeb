"""The IDX format of MNIST and its successors: a big-endian header, then uint8 values."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from stages.runtime.exits import BadData

_UINT8 = 0x08


def find_idx(folder: Path, name: str) -> Path:
    """The file `name` or `name`.gz in a folder. Raises `BadData`."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise BadData(f"{folder} must hold {name} or {name}.gz; neither is there")


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of an IDX or IDX.gz file. Raises `BadData` when magic, dimensions or length are not as required."""
    try:
        with path.open("rb") as raw:
            file: IO[bytes] = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            return _parse(path, file, dimensions)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadData(f"{path}: damaged gzip file ({error}); fetch it again") from None


def _parse(path: Path, file: IO[bytes], dimensions: int) -> npt.NDArray[np.uint8]:
    head = file.read(4)
    magic = struct.pack(">HBB", 0, _UINT8, dimensions)
    if head != magic:
        wanted = f"an IDX file of uint8 in {dimensions} dimensions starts with {magic.hex()}"
        raise BadData(f"{path}: {wanted}, this one with {head.hex() or 'nothing'}; it is another kind of file")
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise BadData(f"{path}: truncated in its header; fetch it again")
    shape = struct.unpack(f">{dimensions}I", sizes)
    expected = 1
    for size in shape:
        expected *= size
    content = file.read(expected + 1)  # One more byte than announced shows that the file is too long.
    if len(content) != expected:
        state = "truncated" if len(content) < expected else "too long"
        got = len(content) if len(content) < expected else "more"
        raise BadData(f"{path}: {state}: its header announces {shape} = {expected} bytes, got {got}; fetch it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
