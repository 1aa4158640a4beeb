"""The prepared data: what `prepare_data` leaves and every later stage reads. numpy and Pillow only, no torch."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data.images import UnreadableImageError, decode
from stages.runtime.exits import BadData
from stages.runtime.files import read_json, sha256_bytes

SPLITS = ("train", "val", "test", "calibration")
"""`calibration` is a part of `train`; the other three share no sample."""

Indices = npt.NDArray[np.int64]
_AGAIN = "run `shipway run prepare_data` again"


@dataclass(frozen=True)
class Info:
    """info.json: what the data is. `shape` is (H, W, C) of an image or (D,) of a table's row, without the batch."""

    kind: str
    """`array`: samples.npy; `files`: image files that are read lazily."""
    hash: str
    """SHA-256 over the content of samples, labels and splits."""
    shape: tuple[int, ...]
    dtype: str
    """`uint8` or `float32`."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Per channel (images) or column (tables), of raw / scale, over the train split only."""
    std: tuple[float, ...]
    """As `mean`; population standard deviation, 1 where it would be 0."""
    scale: float
    """255 for uint8, else 1."""
    splits: dict[str, int]
    """Samples in each split."""
    counts: dict[str, list[int]]
    """Samples in each split and class, in the order of `classes`."""
    dropped: dict[str, int]
    """Bad samples that were left out, by reason (`data.on_bad_sample: drop`)."""
    duplicates: dict[str, int]
    """`copies`: samples whose content came before; `conflicting`: those of them with another label;
    `in_official_test`: samples outside the official test set that also occur in it (left out)."""
    root: str | None = None
    """Folder of the image files (kind `files`), as `data.path` names it."""
    resize: tuple[int, int] | None = None
    """(height, width) to which image files are resized."""
    grayscale: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values for info.json."""
        return asdict(self)


def info_from_json(values: dict[str, Any]) -> Info:
    """The typed form of info.json. Raises `ValueError`, `TypeError` or `KeyError` when it is none."""
    expected, given = {field.name for field in fields(Info)}, set(values)
    if expected != given:
        raise ValueError(f"fields differ: {', '.join(sorted(expected ^ given))}")
    if values["kind"] not in ("array", "files"):
        raise ValueError(f"kind must be array or files; got {values['kind']!r}")
    resize = values["resize"]
    lists = {name: tuple(values[name]) for name in ("shape", "classes", "mean", "std")}
    return Info(**{**values, **lists, "resize": None if resize is None else (int(resize[0]), int(resize[1]))})


@dataclass(frozen=True)
class ImageFile:
    """A line of files.json."""

    path: str
    """Below `info.root`, with forward slashes."""
    sha256: str


class Prepared:
    """Prepared data in a folder; samples are memory-mapped, or read file by file and checked against their hash."""

    def __init__(
        self,
        folder: Path,
        info: Info,
        labels: Indices,
        splits: dict[str, Indices],
        samples: npt.NDArray[Any] | None,
        files: tuple[ImageFile, ...],
    ) -> None:
        self.folder = folder
        self.info = info
        self.labels = labels
        self._splits = splits
        self._samples = samples
        self._files = files

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        """Opens what `prepare_data` left in `folder`. Raises `BadData` when its files and info.json do not agree."""
        info = _read_info(folder)
        labels = _load(folder / "labels.npy")
        splits = {name: _load(folder / f"{name}.npy") for name in SPLITS}
        samples = _map_samples(folder, info) if info.kind == "array" else None
        files = _read_files(folder) if info.kind == "files" else ()
        count = len(files) if samples is None else len(samples)
        _check(folder, info, labels, splits, count)
        return cls(folder, info, labels, splits, samples, files)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the folder again; pickling would copy the memory-mapped samples.
        return Prepared.open, (self.folder,)

    def indices(self, split: str) -> Indices:
        """Sample indices of `train`, `val`, `test` or `calibration`, int64 (n,), ascending."""
        if split not in self._splits:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}; got {split!r}")
        return self._splits[split]

    def read(self, indices: npt.ArrayLike) -> npt.NDArray[Any]:
        """Raw samples (n, *shape) with the dtype of `info`, a copy. Raises `BadData` when a file has changed."""
        chosen = np.asarray(indices, dtype=np.int64)
        if self._samples is not None:
            return np.asarray(self._samples[chosen])
        pixels = np.empty((len(chosen), *self.info.shape), dtype=self.info.dtype)
        for row, index in enumerate(chosen):
            pixels[row] = self._read_file(int(index))
        return pixels

    def describe(self, index: int) -> str:
        """A sample's name for messages: `sample 17`, with its file where it has one."""
        return f"sample {index} ({self._files[index].path})" if self._files else f"sample {index}"

    def _read_file(self, index: int) -> npt.NDArray[np.uint8]:
        file = self._files[index]
        path = Path(self.info.root or ".") / file.path
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise BadData(f"{path}: data changed between stages: the file is gone; {_AGAIN}") from None
        if sha256_bytes(content) != file.sha256:
            raise BadData(f"{path}: data changed between stages: its content is another; {_AGAIN}")
        try:
            return decode(content, self.info.resize, grayscale=self.info.grayscale)
        except UnreadableImageError as error:
            raise BadData(f"{path}: {error}; {_AGAIN}") from None


def _read_info(folder: Path) -> Info:
    path = folder / "info.json"
    try:
        return info_from_json(read_json(path))
    except FileNotFoundError:
        raise BadData(f"{path} is missing; {_AGAIN}, or `dvc checkout`") from None
    except (json.JSONDecodeError, UnicodeDecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadData(f"{path} is damaged ({error}); {_AGAIN}") from None


def _load(path: Path) -> Indices:
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise BadData(f"{path} is missing; {_AGAIN}, or `dvc checkout`") from None
    except (ValueError, EOFError) as error:
        raise BadData(f"{path} is damaged ({error}); {_AGAIN}") from None
    if not isinstance(found, np.ndarray) or found.dtype != np.int64 or found.ndim != 1:
        raise BadData(f"{path} must hold int64 (n,); {_AGAIN}")
    return found


def _map_samples(folder: Path, info: Info) -> npt.NDArray[Any]:
    path = folder / "samples.npy"
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise BadData(f"{path} is missing; {_AGAIN}, or `dvc checkout`") from None
    except (ValueError, EOFError) as error:
        raise BadData(f"{path} is damaged ({error}); {_AGAIN}") from None
    if mapped.shape[1:] != info.shape or mapped.dtype.name != info.dtype:
        found = f"{mapped.dtype.name} {mapped.shape[1:]}"
        raise BadData(f"{path} holds {found} samples, info.json says {info.dtype} {info.shape}; {_AGAIN}")
    return np.asarray(mapped)  # The plain view of the mapping: indexing np.memmap itself is several times slower.


def _read_files(folder: Path) -> tuple[ImageFile, ...]:
    path = folder / "files.json"
    try:
        files = tuple(ImageFile(str(row["path"]), str(row["sha256"])) for row in read_json(path))
    except FileNotFoundError:
        raise BadData(f"{path} is missing; {_AGAIN}, or `dvc checkout`") from None
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise BadData(f"{path} is damaged ({error}); {_AGAIN}") from None
    for file in files:
        inside = PurePosixPath(file.path)
        if inside.is_absolute() or ".." in inside.parts:
            raise BadData(f"{path}: {file.path!r} leaves the data folder; {_AGAIN}")
    return files


def _check(folder: Path, info: Info, labels: Indices, splits: dict[str, Indices], count: int) -> None:
    sizes = {name: len(indices) for name, indices in splits.items()}
    if len(labels) != count:
        raise BadData(f"{folder}: {count} samples but {len(labels)} labels; {_AGAIN}")
    if sizes != info.splits:
        raise BadData(f"{folder}: info.json says splits of {info.splits}, the files hold {sizes}; {_AGAIN}")
    for name, indices in splits.items():
        if len(indices) and (indices.min() < 0 or indices.max() >= count):
            raise BadData(f"{folder}/{name}.npy names samples beyond the {count} that there are; {_AGAIN}")
    if len(labels) and (labels.min() < 0 or labels.max() >= len(info.classes)):
        raise BadData(f"{folder}/labels.npy holds labels outside 0..{len(info.classes) - 1}; {_AGAIN}")
