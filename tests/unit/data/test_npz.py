"""Source `npz`: what it refuses, and how it says so."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.data.sources.npz import open_npz
from stages.runtime.exits import BadData
from tests.unit.data.build import random_images, write_npz

IMAGES, LABELS = random_images(12)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES}, "labels must be under one of the keys labels, y, y_train, train_labels; it holds images"),
        ({"labels": LABELS}, "samples must be under one of the keys images, x, x_train, train_images; it holds labels"),
        ({"images": IMAGES, "x": IMAGES, "labels": LABELS}, "got images and x"),
        ({"images": IMAGES, "labels": LABELS, "ids": LABELS}, "unknown keys ids; it may hold images"),
        ({"images": IMAGES, "labels": LABELS[:5]}, "of shape (12,), one for each of images; got int64 (5,)"),
        ({"images": IMAGES, "labels": np.eye(12)}, "got float64 (12, 12)"),
        ({"images": IMAGES, "labels": LABELS.astype(str)}, "names of classes go into classes"),
        ({"images": IMAGES.astype(np.int32), "labels": LABELS}, "images must be uint8 (0..255) or floating; got int32"),
        ({"images": IMAGES > 3, "labels": LABELS}, "images must be uint8 (0..255) or floating; got bool"),
        ({"x": np.full((12, 2), "a"), "y": LABELS}, "tables must be numbers"),
        ({"x": np.arange(12.0), "y": LABELS}, "a sample must be a table's row (D,) or an image"),
        ({"x": np.zeros((12, 0)), "y": LABELS}, "none of them 0"),
        ({"x": np.zeros((12, 3, 8, 8)), "y": LABELS}, "looks like (C, H, W)"),
        ({"x": IMAGES, "y": LABELS, "x_test": IMAGES}, "labels must be under one of the keys y_test, test_labels"),
        ({"x": IMAGES, "y": LABELS, "y_test": LABELS}, "samples must be under one of the keys x_test, test_images"),
        (
            {"x": IMAGES, "y": LABELS, "x_test": IMAGES[:, :5], "y_test": LABELS},
            "x is uint8 (6, 6, 1), x_test is uint8 (5, 6, 1)",
        ),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["a", "a"])}, "classes must differ from one another"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array([0.5, 1.5])}, "classes must be a list of names"),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData) as caught:
        open_npz(write_npz(tmp_path / "a.npz", **arrays))
    assert message in caught.value.sentence


@pytest.mark.parametrize("key", ["images", "labels", "classes"])
def test_python_objects_are_never_loaded(tmp_path: Path, key: str) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "was unpickled",))

    trap = np.empty(12, dtype=object)
    trap[:] = [Trap() for _ in range(12)]
    path = write_npz(tmp_path / "a.npz", **{"images": IMAGES, "labels": LABELS, key: trap})
    with pytest.raises(BadData, match="holds Python objects"):
        open_npz(path)
    assert not (tmp_path / "was unpickled").exists()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> None:
    path.write_text("sample,label\n")


def _pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"images": IMAGES}))


def _array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, IMAGES)


def _truncated(path: Path) -> None:
    content = write_npz(path, images=IMAGES, labels=LABELS).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _flipped(path: Path) -> None:
    content = bytearray(write_npz(path, images=IMAGES, labels=LABELS).read_bytes())
    content[300] ^= 0xFF
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("make", [_empty, _text, _pickle, _array, _truncated, _flipped])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "a.npz")
    with pytest.raises(BadData, match=r"a\.npz: (no readable|must be an|no .npz archive)"):
        open_npz(tmp_path / "a.npz")


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"is a folder; an \.npz file is required"):
        open_npz(tmp_path)
    with pytest.raises(BadData, match=r"does not exist; an \.npz file is required"):
        open_npz(tmp_path / "a.npz")
