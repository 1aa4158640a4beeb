"""Source `npz`: arrays of samples and labels, with an official test set where the file has one."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data.sources.base import Block, InMemory, require_file, sample_form
from stages.runtime.exits import BadData

SAMPLE_KEYS = ("images", "x", "x_train", "train_images")
LABEL_KEYS = ("labels", "y", "y_train", "train_labels")
TEST_SAMPLE_KEYS = ("x_test", "test_images")
TEST_LABEL_KEYS = ("y_test", "test_labels")
CLASSES_KEY = "classes"
_NPY_MAGIC = b"\x93NUMPY"
_KNOWN = (*SAMPLE_KEYS, *LABEL_KEYS, *TEST_SAMPLE_KEYS, *TEST_LABEL_KEYS, CLASSES_KEY)


def open_npz(path: Path) -> InMemory:
    """Reads an npz file: samples `images` or `x`, labels `labels` or `y`, optional test set and `classes`.

    Samples: uint8 or floating images (N, H, W) or (N, H, W, C), or tables (N, D). Raises `BadData`.
    """
    require_file(path, "an .npz file")
    arrays = _read(path)
    unknown = sorted(set(arrays) - set(_KNOWN))
    if unknown:
        raise BadData(f"{path}: unknown keys {', '.join(unknown)}; it may hold {', '.join(_KNOWN)}")
    blocks = [_block(path, arrays, SAMPLE_KEYS, LABEL_KEYS, official_test=False)]
    if set(arrays) & set(TEST_SAMPLE_KEYS + TEST_LABEL_KEYS):
        blocks.append(_block(path, arrays, TEST_SAMPLE_KEYS, TEST_LABEL_KEYS, official_test=True))
        _require_alike(path, blocks)
    return InMemory(tuple(blocks), _classes(path, arrays))


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    with path.open("rb") as file:
        is_single_array = file.read(len(_NPY_MAGIC)) == _NPY_MAGIC
    if not zipfile.is_zipfile(path) and not is_single_array:
        raise BadData(f"{path}: no .npz archive, or one that was cut off; write it with np.savez")
    try:
        with path.open("rb") as file:  # Opened here: numpy leaves the file open when it is damaged.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise BadData(f"{path}: must be an .npz archive (np.savez), got a single array")
            return {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, KeyError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if "allow_pickle" in str(error) or "pickle" in str(error):
            why = "holds Python objects (pickled), which are never loaded; save plain arrays of numbers or text"
            raise BadData(f"{path}: {why}") from None
        raise BadData(f"{path}: no readable .npz archive ({error}); write it with np.savez") from None


def _block(
    path: Path,
    arrays: dict[str, npt.NDArray[Any]],
    sample_keys: tuple[str, ...],
    label_keys: tuple[str, ...],
    *,
    official_test: bool,
) -> Block:
    origin = _only(path, arrays, sample_keys, "samples")
    label_key = _only(path, arrays, label_keys, "labels")
    samples, labels = arrays[origin], arrays[label_key]
    if samples.ndim == 3:
        samples = samples[..., None]
    fault = sample_form(samples.shape[1:], samples.dtype)
    if fault:
        raise BadData(f"{path}: {origin}: {fault}")
    if labels.dtype.kind not in "iuf" or labels.shape != (len(samples),):
        wanted = f"{label_key} must be integers 0, 1, ... of shape ({len(samples)},), one for each of {origin}"
        raise BadData(f"{path}: {wanted}; got {labels.dtype} {labels.shape} (names of classes go into {CLASSES_KEY})")
    return Block(samples, labels, origin, official_test)


def _only(path: Path, arrays: dict[str, npt.NDArray[Any]], keys: tuple[str, ...], what: str) -> str:
    found = [key for key in keys if key in arrays]
    if len(found) == 1:
        return found[0]
    got = f"got {' and '.join(found)}" if found else f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
    raise BadData(f"{path}: {what} must be under one of the keys {', '.join(keys)}; {got}")


def _require_alike(path: Path, blocks: list[Block]) -> None:
    first, test = blocks
    if first.samples.shape[1:] != test.samples.shape[1:] or first.samples.dtype != test.samples.dtype:
        described = [f"{b.origin} is {b.samples.dtype} {b.samples.shape[1:]}" for b in blocks]
        raise BadData(f"{path}: both sets must have samples of one shape and type; {', '.join(described)}")


def _classes(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> tuple[str, ...] | None:
    if CLASSES_KEY not in arrays:
        return None
    names = arrays[CLASSES_KEY]
    if names.ndim != 1 or names.dtype.kind not in "Uiu":
        raise BadData(f"{path}: {CLASSES_KEY} must be a list of names; got {names.dtype} {names.shape}")
    found = tuple(str(name) for name in names)
    if len(set(found)) != len(found):
        raise BadData(f"{path}: {CLASSES_KEY} must differ from one another; got {', '.join(found)}")
    return found
