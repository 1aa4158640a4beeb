"""Section `data`: where the raw data comes from."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.config.base import Kwargs, Section

WRITTEN = "artifacts"
"""Folder of what the stages leave."""

BUILT_IN_SOURCES = ("digits", "fashion_mnist", "image_folder", "npz")
_IN_FOLDERS = ("fashion_mnist", "image_folder")
IMPORT_PATH = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")


Side = Annotated[int, Field(ge=1, le=4096)]
"""Of an image, in pixels."""


class Data(Section):
    """The source of the raw data."""

    source: str = "digits"
    """`digits`, `fashion_mnist`, `image_folder`, `npz`, or `package.module:factory` for a Dataset of your own."""

    path: Annotated[str, Field(min_length=1)] = "stages/data/digits.npz"
    """File or folder of the raw data; a change of its content makes `prepare_data` stale. Relative to the
    repository, or absolute."""

    kwargs: Kwargs = {}
    """Keyword arguments for a factory of your own; the built-in sources take none."""

    resize: Annotated[list[Side], Field(min_length=2, max_length=2)] | None = None
    """[height, width] in pixels to which `image_folder` resizes (bilinear); needed when the images differ in size."""

    grayscale: bool = False
    """`image_folder` only: one channel instead of three."""

    on_bad_sample: Literal["fail", "drop"] = "fail"
    """`fail`: list the bad samples and stop (exit 65). `drop`: leave them out and count them."""

    @model_validator(mode="after")
    def _settings_take_effect(self) -> Self:
        _check_path(self.path)
        own = bool(IMPORT_PATH.match(self.source))
        if not own and self.source not in BUILT_IN_SOURCES:
            raise ValueError(f"source must be one of {', '.join(BUILT_IN_SOURCES)}, or package.module:factory")
        if self.kwargs and not own:
            raise ValueError(f"kwargs go to a factory (package.module:factory); source {self.source!r} takes none")
        if self.source != "image_folder" and (self.resize is not None or self.grayscale):
            raise ValueError(f"resize and grayscale belong to source 'image_folder', not to {self.source!r}")
        return self


def _check_path(path: str) -> None:
    if not path.isprintable():
        raise ValueError("path must be printable text, without control characters")
    if "://" in path:
        raise ValueError("path must be a file or folder on this machine; fetch remote data first (`dvc import-url`)")
    place, written = os.path.realpath(path), os.path.realpath(WRITTEN)
    if os.path.commonpath([place, written]) in (place, written):
        raise ValueError(f"path must neither lie in {WRITTEN}/ nor hold it: that is what the stages write")


def kind_fault(source: str, path: str) -> str | None:
    """What is wrong with the kind of thing at `path` for a built-in source; None when nothing is, or nothing is there.

    Looked at before a run, too: once `prepare_data` runs, DVC has removed its former outputs.
    """
    place = Path(path)
    if source not in BUILT_IN_SOURCES or not place.exists():
        return None
    if source in _IN_FOLDERS and not place.is_dir():
        return f"data.path: {path} is no folder; source {source!r} requires one"
    if source not in _IN_FOLDERS and not place.is_file():
        return f"data.path: {path} is no file; source {source!r} requires one"
    return None
