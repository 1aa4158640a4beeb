"""Source `image_folder`: one folder per class with PNG and JPEG files, at any depth."""

import os
from collections.abc import Iterator
from pathlib import Path

from stages.data.images import SUFFIXES
from stages.data.sources.base import FileSource, RawFile, require_folder
from stages.runtime.exits import BadData


def open_image_folder(folder: Path, resize: tuple[int, int] | None, *, grayscale: bool) -> FileSource:
    """Lists the images of each class folder; hidden files are left out. Raises `BadData`.

    A link must not lead out of the folder: what lies elsewhere is no part of the versioned data.
    """
    require_folder(folder, "a folder with one folder of PNG or JPEG files per class")
    root = folder.resolve()
    classes = tuple(sorted(entry.name for entry in _visible(folder) if entry.is_dir()))
    if not classes:
        raise BadData(f"{folder} must hold one folder per class with PNG or JPEG files; it holds no folder")
    strays = [entry.name for entry in _visible(folder) if entry.is_file() and _is_image(entry.name)]
    files: list[RawFile] = []
    for label, name in enumerate(classes):
        for path in _walk(folder / name, root):
            relative = path.relative_to(folder).as_posix()
            if _is_image(path.name):
                files.append(RawFile(relative, label))
            else:
                strays.append(relative)
    return FileSource(folder, classes, tuple(files), tuple(sorted(strays)), resize, grayscale)


def _visible(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                _require_utf8(entry)
                yield entry


def _require_utf8(entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        raise BadData(f"{os.fsencode(entry.path)!r}: names must be UTF-8; rename it") from None


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _walk(folder: Path, root: Path) -> Iterator[Path]:
    """The visible files below a folder, sorted by name at each level."""
    _require_inside(folder, root)
    for entry in sorted(_visible(folder), key=lambda found: found.name):
        path = folder / entry.name
        if entry.is_symlink():
            _require_inside(path, root)
        if entry.is_dir():
            yield from _walk(path, root)
        else:
            yield path


def _require_inside(path: Path, root: Path) -> None:
    if path.is_symlink() and path.is_dir():
        raise BadData(
            f"{path} is a link to a folder; links to folders are not followed: put the files themselves there"
        )
    try:
        target = path.resolve()
    except RuntimeError:  # What Python 3.11 raises for links in a circle.
        raise BadData(f"{path} is a link that leads to itself; remove it") from None
    if not target.is_relative_to(root):
        advice = "put the file itself there (a DVC cache that links: `dvc config cache.type reflink,hardlink,copy`)"
        raise BadData(f"{path} is a link that leads out of {root.name}/; {advice}")
