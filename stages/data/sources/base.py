"""What a source gives: chunks of samples in memory, or a list of image files. Nothing is checked here but form."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stages.runtime.exits import BadData

CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Chunk:
    """Some samples in a row: (n, D) or (n, H, W, C), uint8 or floating; labels (n,) as they came."""

    samples: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    origin: str
    """Where they come from, for messages: `images`, `x_test`, a file's name."""
    start: int
    """Position of the first one in its origin."""
    official_test: bool = False

    def name(self, row: int) -> str:
        """`images[17]`."""
        return f"{self.origin}[{self.start + row}]"


class ArraySource(Protocol):
    """Samples that are written into one array."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; None: they are the numbers 0, 1, ... that occur."""

    @property
    def total(self) -> int:
        """How many samples there are."""

    def chunks(self) -> Iterator[Chunk]:
        """All samples, always in the same order; no more than `CHUNK_ROWS` at once."""


@dataclass(frozen=True)
class RawFile:
    """An image file and its class."""

    path: str
    """Below the source's root, with forward slashes."""
    label: int


@dataclass(frozen=True)
class FileSource:
    """Image files that stay where they are and are decoded when read."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[RawFile, ...]
    """In an order that does not depend on the file system's."""
    strays: tuple[str, ...] = ()
    """Files among them that are no PNG or JPEG by name, or lie outside a class folder."""
    resize: tuple[int, int] | None = None
    grayscale: bool = False


Source = ArraySource | FileSource


@dataclass(frozen=True)
class Block:
    """A whole array of samples with its labels, in memory."""

    samples: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    origin: str
    official_test: bool = False


@dataclass(frozen=True)
class InMemory:
    """An `ArraySource` over arrays that are in memory: handed out in views, never copied as a whole."""

    blocks: tuple[Block, ...]
    classes: tuple[str, ...] | None = None
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(len(block.samples) for block in self.blocks))

    def chunks(self) -> Iterator[Chunk]:
        """See `ArraySource`."""
        for block in self.blocks:
            for start in range(0, len(block.samples), CHUNK_ROWS):
                rows = slice(start, start + CHUNK_ROWS)
                yield Chunk(block.samples[rows], block.labels[rows], block.origin, start, block.official_test)


def sample_form(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """What is wrong with a sample of this shape, (D,) or (H, W, C), and type; None when nothing is."""
    if 0 in shape or len(shape) not in (1, 3):
        return f"a sample must be a table's row (D,) or an image (H, W) or (H, W, C), none of them 0; got {shape}"
    if len(shape) == 3 and shape[2] > 4 >= shape[0]:
        return f"an image must be (H, W, C); {shape} looks like (C, H, W): move the channels to the end"
    is_image = len(shape) == 3
    if np.issubdtype(dtype, np.floating) or dtype == np.uint8 or (np.issubdtype(dtype, np.integer) and not is_image):
        return None
    kinds = "images must be uint8 (0..255) or floating" if is_image else "tables must be numbers"
    return f"{kinds}; got {dtype}: convert them first"


def require_file(path: Path, what: str) -> None:
    """Raises `BadData` unless `path` is a file."""
    if not path.exists():
        raise BadData(f"data.path: {path} does not exist; {what} is required")
    if not path.is_file():
        raise BadData(f"data.path: {path} is a folder; {what} is required")


def require_folder(path: Path, what: str) -> None:
    """Raises `BadData` unless `path` is a folder."""
    if not path.exists():
        raise BadData(f"data.path: {path} does not exist; {what} is required")
    if not path.is_dir():
        raise BadData(f"data.path: {path} is a file; {what} is required")
