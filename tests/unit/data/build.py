"""Builds raw data in a folder and prepares it, as the pipeline would."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stages import prepare_data
from stages.config.data import Data
from stages.config.prepare_data import PrepareData
from stages.data.prepared import Prepared
from stages.runtime.stage import Result


def random_images(count: int, seed: int = 0, size: int = 6, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, size, size), dtype=np.uint8), np.arange(count) % classes


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def write_idx(path: Path, array: np.ndarray) -> None:
    content = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_fashion(
    folder: Path, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], suffix: str = ""
) -> Path:
    folder.mkdir(exist_ok=True)
    for prefix, (images, labels) in (("train", train), ("t10k", test)):
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", labels.astype(np.uint8))
    return folder


def write_folder(folder: Path, images: np.ndarray, labels: np.ndarray, *, backwards: bool = False) -> Path:
    """Class folders `class0`, `class1`, ... with PNG files."""
    rows = range(len(images))
    for row in reversed(rows) if backwards else rows:
        path = folder / f"class{labels[row]}" / f"{row:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[row]).save(path)
    return folder


def prepare(
    out: Path, seed: int = 0, split: dict[str, Any] | None = None, threads: int = 2, **data: Any
) -> tuple[Prepared, Result]:
    """Runs the stage into `out` and opens what it left."""
    outputs = prepare_data.Outputs(out / "data", out / "metrics.json")
    outputs.data.mkdir(parents=True)
    if "path" in data:
        data["path"] = str(data["path"])
    params = prepare_data.Params(
        seed=seed, threads=threads, data=Data(**data), prepare_data=PrepareData(**(split or {}))
    )
    result = prepare_data.run(params, prepare_data.Inputs(), outputs)
    return Prepared.open(outputs.data), result


def splits_by_content(prepared: Prepared) -> dict[bytes, str]:
    """Which of train, val, test each sample's content lies in."""
    return {row.tobytes(): name for name in ("train", "val", "test") for row in prepared.read(prepared.indices(name))}


def deep_rgb_png(width: int, height: int) -> bytes:
    """A PNG of 16 bits a channel in RGB; Pillow reads such a file, but cannot write one."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes(range(6)) * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
