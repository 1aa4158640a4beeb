"""Opening prepared data: files and info.json must agree."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.data.prepared import Prepared
from stages.runtime.exits import BadData
from tests.unit.data.build import prepare, random_images, write_folder, write_npz


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images, labels = random_images(100)
    prepare(tmp_path / "out", source="npz", path=write_npz(tmp_path / "a.npz", images=images, labels=labels))
    return tmp_path / "out" / "data"


def test_read_gives_a_copy_in_the_order_asked_for(folder: Path) -> None:
    prepared = Prepared.open(folder)
    images, _ = random_images(100)
    found = prepared.read([7, 3, 7])
    assert np.array_equal(found[..., 0], images[[7, 3, 7]])
    found[:] = 0
    assert np.array_equal(prepared.read([7])[0, :, :, 0], images[7])


def test_samples_are_mapped_not_loaded(folder: Path) -> None:
    base = Prepared.open(folder)._samples
    while base is not None and not isinstance(base, np.memmap):
        base = base.base  # type: ignore[assignment]
    assert isinstance(base, np.memmap)
    assert len(pickle.dumps(Prepared.open(folder))) < 500


def test_a_split_that_is_none_is_a_programming_error(folder: Path) -> None:
    with pytest.raises(ValueError, match="one of train, val, test, calibration; got 'valid'"):
        Prepared.open(folder).indices("valid")


def _edit_info(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        info = json.loads((folder / "info.json").read_text()) | changes
        (folder / "info.json").write_text(json.dumps({k: v for k, v in info.items() if v != "gone"}))

    return edit


def _save(name: str, array: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, array)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "info.json").unlink(), "info.json is missing"),
        (lambda f: (f / "info.json").write_text("{"), "info.json is damaged"),
        (lambda f: (f / "info.json").write_text("[]"), "info.json is damaged"),
        (_edit_info(mean="gone"), "info.json is damaged (fields differ: mean)"),
        (_edit_info(surprise=1), "info.json is damaged (fields differ: surprise)"),
        (_edit_info(shape=[6, 6, 3]), "holds uint8 (6, 6, 1) samples, info.json says uint8 (6, 6, 3)"),
        (_edit_info(dtype="float32"), "info.json says float32"),
        (_edit_info(splits={"train": 1}), "info.json says splits of {'train': 1}"),
        (_edit_info(classes=["a", "b"]), "labels outside 0..1"),
        (lambda f: (f / "samples.npy").unlink(), "samples.npy is missing"),
        (lambda f: (f / "samples.npy").write_bytes(b"x"), "samples.npy is damaged"),
        (lambda f: (f / "samples.npy").write_bytes((f / "samples.npy").read_bytes()[:-9]), "samples.npy is damaged"),
        (lambda f: (f / "val.npy").unlink(), "val.npy is missing"),
        (_save("labels.npy", np.zeros(100)), "labels.npy must hold int64 (n,)"),
        (_save("labels.npy", np.zeros(99, np.int64)), "100 samples but 99 labels"),
        (_save("labels.npy", np.array([{}] * 100)), "labels.npy is damaged"),
        (lambda f: np.save(f / "val.npy", np.load(f / "val.npy") + 90), "val.npy names samples beyond the 100"),
        (_edit_info(kind="files"), "files.json is missing"),
        (_edit_info(kind="tape"), "kind must be array or files"),
    ],
)
def test_what_does_not_agree_is_refused(folder: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(folder)
    with pytest.raises(BadData) as caught:
        Prepared.open(folder)
    assert message in caught.value.sentence
    assert "prepare_data" in caught.value.sentence


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "class0/../../secret.png"])
def test_a_path_in_files_json_cannot_leave_the_folder(tmp_path: Path, path: str) -> None:
    images, labels = random_images(60)
    prepare(tmp_path / "out", source="image_folder", path=write_folder(tmp_path / "raw", images, labels))
    listing = tmp_path / "out/data/files.json"
    rows = json.loads(listing.read_text())
    rows[3]["path"] = path
    listing.write_text(json.dumps(rows))
    with pytest.raises(BadData, match="leaves the data folder"):
        Prepared.open(tmp_path / "out/data")
