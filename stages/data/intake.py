"""Takes a source's samples in: checks each, hashes its content, and writes arrays to disk without a second copy."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data import bad_samples, statistics
from stages.data.bad_samples import BadSamples
from stages.data.images import UnreadableImageError, bombs_are_errors, decode
from stages.data.npy import NpyWriter
from stages.data.prepared import ImageFile, Indices
from stages.data.sources.base import ArraySource, Chunk, FileSource, RawFile
from stages.data.splits import Digests
from stages.data.statistics import Moments
from stages.runtime.progress import track

_WINDOW = 256
"""Files that are decoded ahead at once."""


@dataclass(frozen=True)
class Intake:
    """The good samples of a source, in its order."""

    shape: tuple[int, ...]
    dtype: str
    digests: Digests
    labels: npt.NDArray[np.int64]
    official_test: npt.NDArray[np.bool_]
    classes: tuple[str, ...]
    files: tuple[ImageFile, ...] | None
    """The image files (kind `files`), or None where the samples were written to samples.npy."""
    moments: Callable[[Indices], Moments]
    """Mean and std over the train split."""


def take_arrays(source: ArraySource, path: Path, bad: BadSamples) -> Intake:
    """Writes the good samples to `path` (.npy): uint8 images stay so, everything else becomes float32."""
    limit = len(source.classes) if source.classes is not None else max(source.total, 1)
    digests: list[bytes] = []
    labels: list[npt.NDArray[np.int64]] = []
    official: list[npt.NDArray[np.bool_]] = []
    with NpyWriter(path) as writer:
        for chunk in track(source.chunks(), "read chunks of samples"):
            rows = _as_stored(chunk.samples)
            good = _good_rows(chunk, rows, limit, writer, bad)
            if not good.any():
                continue
            kept = np.ascontiguousarray(rows[good])
            writer.append(kept)
            digests.extend(hashlib.sha256(row.data).digest() for row in kept)
            labels.append(np.array([int(label) for label in chunk.labels[good]], dtype=np.int64))
            official.append(np.full(len(kept), chunk.official_test))
    all_labels = np.concatenate(labels) if labels else np.empty(0, dtype=np.int64)
    return Intake(
        shape=writer.shape or (),
        dtype=str(writer.dtype),
        digests=_table(digests),
        labels=all_labels,
        official_test=np.concatenate(official) if official else np.empty(0, dtype=bool),
        classes=source.classes or tuple(map(str, range(int(all_labels.max(initial=-1)) + 1))),
        files=None,
        moments=lambda train: statistics.moments(np.load(path, mmap_mode="r", allow_pickle=False), train),
    )


def _as_stored(samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if samples.dtype == np.uint8 and samples.ndim == 4:
        return samples
    with np.errstate(over="ignore"):  # What does not fit into float32 becomes Inf, and is found as such.
        return samples.astype(np.float32, copy=False)


def _good_rows(
    chunk: Chunk, rows: npt.NDArray[Any], limit: int, writer: NpyWriter, bad: BadSamples
) -> npt.NDArray[np.bool_]:
    good = np.ones(len(rows), dtype=bool)
    if writer.shape is not None and (rows.shape[1:] != writer.shape or rows.dtype != writer.dtype):
        problem = f"{rows.dtype} {rows.shape[1:]}, but the first sample is {writer.dtype} {writer.shape}"
        for row in range(len(rows)):
            bad.add(bad_samples.OTHER_SIZE, chunk.name(row), problem)
        return ~good
    if rows.dtype != np.uint8:
        finite = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
        for row in np.flatnonzero(~finite).tolist():
            bad.add(bad_samples.NOT_FINITE, chunk.name(row), "holds NaN or Inf (as float32)")
        good &= finite
    for row, problem in bad_samples.label_faults(chunk.labels, limit).items():
        if good[row]:
            bad.add(bad_samples.LABEL, chunk.name(row), problem)
            good[row] = False
    return good


def _table(digests: list[bytes]) -> Digests:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)


@dataclass(frozen=True)
class _Seen:
    file: RawFile
    digest: bytes = b""
    shape: tuple[int, ...] = ()
    histogram: npt.NDArray[np.int64] | None = None
    problem: str | None = None


def take_files(source: FileSource, bad: BadSamples, is_train: Callable[[bytes], bool], threads: int) -> Intake:
    """Decodes every file once: checks it, hashes it, and counts the levels of those that belong to train."""
    for stray in source.strays:
        bad.add(bad_samples.UNREADABLE, stray, "must be a PNG or JPEG file in a class folder")
    seen: list[_Seen] = []
    histograms: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}
    for one in track(_look_at_all(source, is_train, threads), "read images", len(source.files)):
        if one.problem is not None:
            bad.add(bad_samples.UNREADABLE, one.file.path, one.problem)
            continue
        if one.histogram is not None:
            before = histograms.get(one.shape)
            histograms[one.shape] = one.histogram if before is None else before + one.histogram
        seen.append(_Seen(one.file, one.digest, one.shape))
    shape = _usual_shape(seen)
    kept = [one for one in seen if one.shape == shape]
    for one in seen:
        if one.shape != shape:
            sizes = f"{one.shape[0]} x {one.shape[1]} pixels, most are {shape[0]} x {shape[1]}"
            bad.add(bad_samples.OTHER_SIZE, one.file.path, f"{sizes}; set data.resize: [height, width]")
    return Intake(
        shape=shape,
        dtype="uint8",
        digests=_table([one.digest for one in kept]),
        labels=np.array([one.file.label for one in kept], dtype=np.int64),
        official_test=np.zeros(len(kept), dtype=bool),
        classes=source.classes,
        files=tuple(ImageFile(one.file.path, one.digest.hex()) for one in kept),
        moments=lambda _: statistics.moments_of_histogram(histograms[shape]),
    )


def _look_at_all(source: FileSource, is_train: Callable[[bytes], bool], threads: int) -> Iterator[_Seen]:
    with bombs_are_errors(), ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(source.files), _WINDOW):
            window = source.files[start : start + _WINDOW]
            yield from pool.map(lambda file: _look_at(source, file, is_train), window)


def _look_at(source: FileSource, file: RawFile, is_train: Callable[[bytes], bool]) -> _Seen:
    try:
        content = (source.root / file.path).read_bytes()
        pixels = decode(content, source.resize, grayscale=source.grayscale)
    except OSError as error:
        return _Seen(file, problem=f"cannot be read ({error.strerror})")
    except UnreadableImageError as error:
        return _Seen(file, problem=str(error))
    digest = hashlib.sha256(content).digest()
    counts = statistics.histogram(pixels) if is_train(digest) else None
    return _Seen(file, digest, pixels.shape, counts)


def _usual_shape(seen: list[_Seen]) -> tuple[int, ...]:
    counts: dict[tuple[int, ...], int] = {}
    for one in seen:
        counts[one.shape] = counts.get(one.shape, 0) + 1
    return max(counts, key=lambda shape: (counts[shape], shape), default=())
