"""A source of the user's own: `package.module:factory` returns a Dataset (`__len__`, `__getitem__`)."""

import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from stages.data.images import UnreadableImageError, pixels
from stages.data.sources.base import CHUNK_ROWS, Chunk, sample_form
from stages.runtime import seeds
from stages.runtime.exits import BadParams, StageError


class FactorySource:
    """An `ArraySource` over a user's Dataset, read sample by sample in order.

    A sample is a numpy array (D,), (H, W) or (H, W, C), a torch tensor (D,), (H, W) or (C, H, W), or a PIL image.
    """

    def __init__(self, name: str, dataset: Any, classes: tuple[str, ...] | None) -> None:
        self.name = name
        self.dataset = dataset
        self.classes = classes
        self.total = _length(name, dataset)

    def chunks(self) -> Iterator[Chunk]:
        """See `ArraySource`. Raises `BadParams` when the dataset raises or gives no (sample, label)."""
        rows: list[npt.NDArray[Any]] = []
        labels: list[Any] = []
        for index in range(self.total):
            sample, label = self._item(index)
            if rows and (len(rows) == CHUNK_ROWS or sample.shape != rows[0].shape or sample.dtype != rows[0].dtype):
                yield self._chunk(rows, labels, index)
                rows, labels = [], []
            rows.append(sample)
            labels.append(label)
        if rows:
            yield self._chunk(rows, labels, self.total)

    def _chunk(self, rows: list[npt.NDArray[Any]], labels: list[Any], end: int) -> Chunk:
        as_they_came = np.empty(len(labels), dtype=object)
        as_they_came[:] = labels
        return Chunk(np.stack(rows), as_they_came, "dataset", end - len(rows))

    def _item(self, index: int) -> tuple[npt.NDArray[Any], Any]:
        try:
            item = self.dataset[index]
        except StageError:
            raise
        except Exception as error:
            raise _fault(f"sample {index} of {self.name} raised", error) from None
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            got = f"{type(item).__name__} of {len(item)}" if isinstance(item, (tuple, list)) else type(item).__name__
            raise BadParams(f"{self.name}: sample {index} must be (sample, label); got {got}")
        sample = to_array(item[0], f"{self.name}: sample {index}")
        label = item[1]
        return sample, label.item() if hasattr(label, "item") and getattr(label, "ndim", 0) == 0 else label


def open_factory(name: str, kwargs: Mapping[str, Any], seed: int, threads: int) -> FactorySource:
    """Imports and calls the factory. Raises `BadParams` for every fault of it."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise _fault(f"data.source: {module_name} cannot be imported", error) from None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        state = "is not callable" if hasattr(module, attribute) else "does not exist"
        raise BadParams(f"data.source: {attribute} in {module_name} {state}; it must be a function or class")
    seeds.apply(seed, threads)  # Again: the module may just have imported torch.
    try:
        dataset = factory(**kwargs)
    except StageError:
        raise
    except Exception as error:
        raise _fault(f"data.source: {name} raised", error) from None
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        wanted = "must return a Dataset with __len__ and __getitem__"
        raise BadParams(f"data.source: {name} {wanted}; got {type(dataset).__name__}")
    return FactorySource(name, dataset, _classes(name, dataset))


def _length(name: str, dataset: Any) -> int:
    try:
        return len(dataset)
    except Exception as error:
        raise _fault(f"data.source: __len__ of what {name} returned raised", error) from None


def _fault(what: str, error: Exception) -> BadParams:
    detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return BadParams(f"{what}: {detail}", {"traceback": traceback.format_exc()})


def _classes(name: str, dataset: Any) -> tuple[str, ...] | None:
    found = getattr(dataset, "classes", None)
    if found is None:
        return None
    try:
        names = tuple(str(one) for one in found)
    except TypeError:
        raise BadParams(f"{name}: .classes must be a list of names; got {type(found).__name__}") from None
    if isinstance(found, str) or not names or len(set(names)) != len(names):
        raise BadParams(f"{name}: .classes must be a list of names that differ; got {found!r}")
    return names


def to_array(sample: Any, what: str) -> npt.NDArray[Any]:
    """A sample as numpy (D,) or (H, W, C). Raises `BadParams`."""
    array = _numpy(sample, what)
    if array.ndim == 2:
        array = array[:, :, None]
    fault = sample_form(array.shape, array.dtype)
    if fault:
        raise BadParams(f"{what}: {fault}")
    return array


def _numpy(sample: Any, what: str) -> npt.NDArray[Any]:
    if isinstance(sample, Image.Image):
        try:
            return pixels(sample, grayscale=sample.mode in ("1", "L"))
        except UnreadableImageError as error:
            raise BadParams(f"{what}: {error}") from None
    torch = sys.modules.get("torch")  # A tensor can only come from a module that is loaded.
    if torch is not None and isinstance(sample, torch.Tensor):
        plain = sample.detach().cpu()
        plain = plain.float() if plain.is_floating_point() else plain
        array: npt.NDArray[Any] = plain.numpy()
        if array.ndim == 3 and array.shape[0] > 4 >= array.shape[2]:
            raise BadParams(f"{what}: a tensor must be (C, H, W); got {array.shape}, which looks like (H, W, C)")
        return np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    try:
        return np.asarray(sample)
    except ValueError as error:
        raise BadParams(f"{what}: must be an array, a tensor or a PIL image ({error})") from None
