"""Source `fashion_mnist` in IDX and IDX.gz, as its publishers lay it out."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.data.sources.fashion_mnist import CLASSES, open_fashion_mnist
from stages.runtime.exits import BadData
from stages.runtime.files import digest, read_json
from tests.unit.data.build import prepare, random_images, write_fashion, write_idx

TRAIN = random_images(400, classes=10)
TEST = random_images(60, seed=1, classes=10)
IMAGES = "train-images-idx3-ubyte"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_official_test_set_stays_the_test_split(tmp_path: Path, suffix: str) -> None:
    folder = write_fashion(tmp_path / "raw", TRAIN, TEST, suffix)
    prepared, _ = prepare(tmp_path / "out", source="fashion_mnist", path=folder)
    assert prepared.info.classes == CLASSES
    assert prepared.indices("test").tolist() == list(range(400, 460))
    assert np.array_equal(prepared.read(prepared.indices("test"))[..., 0], TEST[0])
    assert np.array_equal(prepared.labels[prepared.indices("test")], TEST[1])
    rest = np.concatenate([prepared.indices("train"), prepared.indices("val")])
    assert sorted(rest) == list(range(400))
    assert abs(len(prepared.indices("val")) / 400 - 0.15) < 0.05


def test_idx_and_idx_gz_give_the_same_bytes(tmp_path: Path) -> None:
    plain = write_fashion(tmp_path / "plain", TRAIN, TEST)
    packed = write_fashion(tmp_path / "packed", TRAIN, TEST, ".gz")
    prepare(tmp_path / "a", source="fashion_mnist", path=plain)
    prepare(tmp_path / "b", source="fashion_mnist", path=packed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_training_images_that_are_also_test_images_are_dropped_on_request(tmp_path: Path) -> None:
    test = (TEST[0].copy(), TEST[1])
    test[0][:5] = TRAIN[0][:5]
    folder = write_fashion(tmp_path / "raw", TRAIN, test)
    with pytest.raises(BadData, match="5 bad samples"):
        prepare(tmp_path / "refused", source="fashion_mnist", path=folder)
    prepare(tmp_path / "out", source="fashion_mnist", path=folder, on_bad_sample="drop")
    assert read_json(tmp_path / "out/data/info.json")["duplicates"]["in_official_test"] == 5
    assert read_json(tmp_path / "out/metrics.json")["duplicates"]["in_official_test"] == 5


def test_a_label_out_of_range_is_named_with_its_file(tmp_path: Path) -> None:
    labels = TRAIN[1].copy()
    labels[17] = 10
    folder = write_fashion(tmp_path / "raw", (TRAIN[0], labels), TEST)
    with pytest.raises(BadData, match=r"train-images-idx3-ubyte\[17\]: label 10 must be an integer from 0 to 9"):
        prepare(tmp_path / "out", source="fashion_mnist", path=folder)


def _cut(folder: Path) -> None:
    content = (folder / IMAGES).read_bytes()
    (folder / IMAGES).write_bytes(content[:-100])


def _cut_header(folder: Path) -> None:
    (folder / IMAGES).write_bytes((folder / IMAGES).read_bytes()[:9])


def _lengthen(folder: Path) -> None:
    (folder / IMAGES).write_bytes((folder / IMAGES).read_bytes() + b"\0")


def _empty(folder: Path) -> None:
    (folder / IMAGES).write_bytes(b"")


def _labels_for_images(folder: Path) -> None:
    (folder / IMAGES).write_bytes((folder / "train-labels-idx1-ubyte").read_bytes())


def _fewer_labels(folder: Path) -> None:
    write_idx(folder / "train-labels-idx1-ubyte", TRAIN[1][:-1].astype(np.uint8))


def _other_size(folder: Path) -> None:
    write_idx(folder / "t10k-images-idx3-ubyte", TEST[0][:, :5])


def _missing(folder: Path) -> None:
    (folder / IMAGES).unlink()


def _damaged_gzip(folder: Path) -> None:
    content = bytearray(gzip.compress((folder / IMAGES).read_bytes()))
    content[len(content) // 2] ^= 0xFF
    (folder / f"{IMAGES}.gz").write_bytes(bytes(content))
    (folder / IMAGES).unlink()


def _cut_gzip(folder: Path) -> None:
    content = gzip.compress((folder / IMAGES).read_bytes())
    (folder / f"{IMAGES}.gz").write_bytes(content[: len(content) // 2])
    (folder / IMAGES).unlink()


def _no_gzip(folder: Path) -> None:
    (folder / IMAGES).rename(folder / f"{IMAGES}.gz")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_cut, "truncated: its header announces (400, 6, 6) = 14400 bytes, got 14300"),
        (_cut_header, "truncated in its header"),
        (_lengthen, "too long: its header announces (400, 6, 6) = 14400 bytes, got more"),
        (_empty, "starts with 00000803, this one with nothing"),
        (_labels_for_images, "starts with 00000803, this one with 00000801"),
        (_fewer_labels, "has 400 images, train-labels-idx1-ubyte 399 labels"),
        (_other_size, "train images are (6, 6, 1), test images (5, 6, 1)"),
        (_missing, "must hold train-images-idx3-ubyte or train-images-idx3-ubyte.gz; neither is there"),
        (_damaged_gzip, "damaged gzip file"),
        (_cut_gzip, "damaged gzip file"),
        (_no_gzip, "damaged gzip file"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    folder = write_fashion(tmp_path / "raw", TRAIN, TEST)
    spoil(folder)
    with pytest.raises(BadData) as caught:
        open_fashion_mnist(folder)
    assert message in caught.value.sentence


def test_a_missing_folder_and_a_file_instead_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="does not exist; the folder with the four Fashion-MNIST files"):
        open_fashion_mnist(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadData, match="is a file; the folder with the four Fashion-MNIST files"):
        open_fashion_mnist(tmp_path / "file")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_the_real_files_of_debian(tmp_path: Path) -> None:
    prepared, _ = prepare(tmp_path / "out", source="fashion_mnist", path=DEBIAN)
    assert prepared.info.splits["test"] == 10_000
    assert prepared.info.splits["train"] + prepared.info.splits["val"] == 60_000
    assert prepared.info.shape == (28, 28, 1)
    assert prepared.info.mean[0] == pytest.approx(0.286, abs=0.002)
