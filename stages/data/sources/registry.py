"""Every source by name. Your own: a file here and one line below, or `data.source: package.module:factory`."""

from collections.abc import Callable
from pathlib import Path

from stages.config.data import Data
from stages.data.sources.base import Source
from stages.data.sources.digits import open_digits
from stages.data.sources.fashion_mnist import open_fashion_mnist
from stages.data.sources.image_folder import open_image_folder
from stages.data.sources.npz import open_npz


def _open_image_folder(path: Path, data: Data) -> Source:
    resize = None if data.resize is None else (data.resize[0], data.resize[1])
    return open_image_folder(path, resize, grayscale=data.grayscale)


SOURCES: dict[str, Callable[[Path, Data], Source]] = {
    "digits": lambda path, _: open_digits(path),
    "fashion_mnist": lambda path, _: open_fashion_mnist(path),
    "image_folder": _open_image_folder,
    "npz": lambda path, _: open_npz(path),
}


def open_source(data: Data, seed: int, threads: int) -> Source:
    """The source that section `data` names. Raises `BadData`, or `BadParams` for a fault of the user's factory."""
    if data.source in SOURCES:
        return SOURCES[data.source](Path(data.path), data)
    from stages.data.sources.factory import open_factory  # The user's module may need seconds and libraries.

    return open_factory(data.source, data.kwargs, seed, threads)
