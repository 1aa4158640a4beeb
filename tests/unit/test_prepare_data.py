"""The stage as a whole: splits, statistics, determinism, and bad data with its code and message."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stages.data.prepared import SPLITS, Prepared
from stages.runtime.exits import BadData
from stages.runtime.files import digest, read_json
from tests.unit.data.build import prepare, random_images, splits_by_content, write_npz

ROOT = Path(__file__).resolve().parents[2]


def test_digits_are_split_whole_and_without_overlap(tmp_path: Path) -> None:
    prepared, result = prepare(tmp_path / "out", source="digits", path=ROOT / "stages/data/digits.npz")
    info = prepared.info
    together = np.concatenate([prepared.indices(name) for name in ("train", "val", "test")])
    assert sorted(together) == list(range(1797))
    assert set(prepared.indices("calibration")) < set(prepared.indices("train"))
    assert (info.kind, info.shape, info.dtype, info.scale) == ("array", (8, 8, 1), "uint8", 255.0)
    assert info.classes == tuple("0123456789")
    for name in SPLITS:
        counts = np.bincount(prepared.labels[prepared.indices(name)], minlength=10)
        assert info.counts[name] == counts.tolist()
    assert abs(info.splits["val"] / 1797 - 0.15) < 0.03
    assert abs(info.splits["test"] / 1797 - 0.15) < 0.03
    assert abs(info.splits["calibration"] / info.splits["train"] - 0.2) < 0.03
    assert f"{info.splits['train']} train" in result.summary
    raw = np.load(ROOT / "stages/data/digits.npz")
    assert np.array_equal(prepared.read(np.arange(1797))[..., 0], raw["images"])
    assert np.array_equal(prepared.labels, raw["labels"])


def test_a_second_run_gives_the_same_bytes_and_a_seed_another_split(tmp_path: Path) -> None:
    images, labels = random_images(300)
    path = write_npz(tmp_path / "a.npz", images=images, labels=labels)
    prepare(tmp_path / "one", source="npz", path=path)
    prepare(tmp_path / "two", source="npz", path=path, threads=1)
    other, _ = prepare(tmp_path / "three", source="npz", path=path, seed=1)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    first = Prepared.open(tmp_path / "one" / "data")
    assert first.info.hash != other.info.hash
    assert not np.array_equal(first.indices("test"), other.indices("test"))


def test_new_data_and_another_order_never_move_a_sample(tmp_path: Path) -> None:
    images, labels = random_images(300)
    more, more_labels = random_images(200, seed=1)
    order = np.random.default_rng(2).permutation(500)
    grown = np.concatenate([images, more])[order]
    grown_labels = np.concatenate([labels, more_labels])[order]
    old, _ = prepare(tmp_path / "a", source="npz", path=write_npz(tmp_path / "a.npz", images=images, labels=labels))
    new, _ = prepare(
        tmp_path / "b", source="npz", path=write_npz(tmp_path / "b.npz", images=grown, labels=grown_labels)
    )
    before, after = splits_by_content(old), splits_by_content(new)
    assert len(before) == 300
    assert all(after[content] == split for content, split in before.items())


def test_changing_the_validation_share_moves_nothing_into_or_out_of_test(tmp_path: Path) -> None:
    images, labels = random_images(300)
    path = write_npz(tmp_path / "a.npz", images=images, labels=labels)
    one, _ = prepare(tmp_path / "one", source="npz", path=path)
    two, _ = prepare(tmp_path / "two", source="npz", path=path, split={"val_share": 0.3})
    assert np.array_equal(one.indices("test"), two.indices("test"))
    assert set(one.indices("val")) < set(two.indices("val"))


def test_copies_fall_into_one_split_whatever_their_label_and_are_counted(tmp_path: Path) -> None:
    images, labels = random_images(200)
    images = np.concatenate([images, images[:50], images[:10]])
    labels = np.concatenate([labels, labels[:50], (labels[:10] + 1) % 3])
    prepared, result = prepare(tmp_path / "out", source="npz", path=write_npz(tmp_path / "a.npz", x=images, y=labels))
    where = np.empty(len(images), dtype=object)
    for name in ("train", "val", "test"):
        where[prepared.indices(name)] = name
    assert np.array_equal(where[200:250], where[:50])
    assert np.array_equal(where[250:], where[:10])
    assert prepared.info.duplicates == {"copies": 60, "conflicting": 10, "in_official_test": 0}
    assert "60 exact copies (10 with another label)" in result.summary
    assert read_json(tmp_path / "out" / "metrics.json")["duplicates"]["copies"] == 60


def test_an_official_test_set_of_an_npz_stays_and_copies_of_it_are_found(tmp_path: Path) -> None:
    images, labels = random_images(200)
    test, test_labels = random_images(60, seed=1)
    test[:7] = images[:7]
    path = write_npz(tmp_path / "a.npz", x=images, y=labels, x_test=test, y_test=test_labels)
    with pytest.raises(BadData, match="7 bad samples: sample 0: the same content is in the official test set"):
        prepare(tmp_path / "refused", source="npz", path=path)
    prepared, result = prepare(tmp_path / "out", source="npz", path=path, on_bad_sample="drop")
    assert prepared.indices("test").tolist() == list(range(200, 260))
    assert not set(range(7)) & {*prepared.indices("train"), *prepared.indices("val"), *prepared.indices("calibration")}
    assert "bad samples dropped: 7" in result.summary
    assert read_json(tmp_path / "out" / "metrics.json")["duplicates"]["in_official_test"] == 7


def test_normalisation_comes_from_train_alone(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (300, 5, 4, 3), dtype=np.uint8)
    path = write_npz(tmp_path / "a.npz", images=images, labels=np.arange(300) % 2)
    prepared, _ = prepare(tmp_path / "out", source="npz", path=path)
    train = prepared.read(prepared.indices("train")).astype(np.float64) / 255.0
    assert prepared.info.mean == pytest.approx(train.mean(axis=(0, 1, 2)), rel=1e-12)
    assert prepared.info.std == pytest.approx(train.std(axis=(0, 1, 2)), rel=1e-12)


def test_a_table_is_float32_with_statistics_per_column_and_a_constant_column_has_std_1(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(1e6, 3.0, (3000, 4))
    table[:, 2] = 0.1
    path = write_npz(tmp_path / "a.npz", x=table, y=np.arange(3000) % 2, classes=np.array(["no", "yes"]))
    prepared, _ = prepare(tmp_path / "out", source="npz", path=path)
    train = table.astype(np.float32)[prepared.indices("train")].astype(np.float64)
    assert (prepared.info.shape, prepared.info.dtype, prepared.info.scale) == ((4,), "float32", 1.0)
    assert prepared.info.classes == ("no", "yes")
    assert prepared.info.mean == pytest.approx(train.mean(axis=0), rel=1e-12)
    assert prepared.info.std[2] == 1.0
    assert prepared.info.std[0] == pytest.approx(train[:, 0].std(), rel=1e-9)


def test_whole_numbers_in_a_table_and_float_images_are_taken(tmp_path: Path) -> None:
    table = np.random.default_rng(0).integers(-1000, 1000, (200, 3))
    prepared, _ = prepare(
        tmp_path / "a", source="npz", path=write_npz(tmp_path / "a.npz", x=table, y=np.arange(200) % 2)
    )
    assert np.array_equal(prepared.read(np.arange(200)), table.astype(np.float32))
    images = np.random.default_rng(0).random((200, 4, 5))
    prepared, _ = prepare(
        tmp_path / "b", source="npz", path=write_npz(tmp_path / "b.npz", x=images, y=np.arange(200.0) % 2)
    )
    assert (prepared.info.shape, prepared.info.dtype, prepared.info.scale) == ((4, 5, 1), "float32", 1.0)


BAD_ROWS = {
    "nan": (lambda x, y: x.__setitem__((5, 1), np.nan), "x[5]: holds NaN or Inf", "not_finite"),
    "inf": (lambda x, y: x.__setitem__((5, 1), -np.inf), "x[5]: holds NaN or Inf", "not_finite"),
    "too large for float32": (lambda x, y: x.__setitem__((5, 1), 1e300), "x[5]: holds NaN or Inf", "not_finite"),
    "label too large": (lambda x, y: y.__setitem__(5, 2), "x[5]: label 2.0 must be an integer from 0 to 1", "label"),
    "label negative": (lambda x, y: y.__setitem__(5, -1), "x[5]: label -1.0 must be an integer from 0 to 1", "label"),
    "label fraction": (lambda x, y: y.__setitem__(5, 0.5), "x[5]: label 0.5 must be an integer", "label"),
    "label nan": (lambda x, y: y.__setitem__(5, np.nan), "x[5]: label nan must be an integer", "label"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_listed_or_dropped(tmp_path: Path, name: str) -> None:
    spoil, message, reason = BAD_ROWS[name]
    table, labels = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 2.0
    spoil(table, labels)
    path = write_npz(tmp_path / "a.npz", x=table, y=labels, classes=np.array(["a", "b"]))
    with pytest.raises(BadData) as caught:
        prepare(tmp_path / "fail", source="npz", path=path)
    assert message in caught.value.sentence
    assert "data.on_bad_sample: drop" in caught.value.sentence
    assert caught.value.evidence["counts"] == {reason: 1}
    prepared, result = prepare(tmp_path / "drop", source="npz", path=path, on_bad_sample="drop")
    assert prepared.info.dropped == {reason: 1}
    assert len(prepared.labels) == 199
    assert np.array_equal(prepared.read([5])[0], table[6].astype(np.float32))
    assert "bad samples dropped: 1" in result.summary
    assert read_json(tmp_path / "drop" / "metrics.json")["dropped"] == 1


def test_all_bad_samples_are_in_the_evidence_and_the_first_in_the_sentence(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(3000, 3))
    table[1000:1020] = np.nan
    path = write_npz(tmp_path / "a.npz", x=table, y=np.arange(3000) % 2)
    with pytest.raises(BadData) as caught:
        prepare(tmp_path / "out", source="npz", path=path)
    assert caught.value.sentence.startswith("20 bad samples: x[1000]: ")
    assert "and 15 more" in caught.value.sentence
    listed = caught.value.evidence["bad_samples"]
    assert isinstance(listed, list)
    assert [row["sample"] for row in listed if isinstance(row, dict)] == [f"x[{i}]" for i in range(1000, 1020)]


def test_without_names_a_label_beyond_the_number_of_samples_is_bad(tmp_path: Path) -> None:
    images, labels = random_images(100)
    labels[3] = 10**12
    path = write_npz(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(BadData, match=r"images\[3\]: label 1000000000000 must be an integer from 0 to 99"):
        prepare(tmp_path / "out", source="npz", path=path)


def _one_class(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return images, labels * 0


def _one_sample(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels[:] = np.arange(len(labels)) % 2
    labels[7] = 2
    return images, labels


def _missing_class(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return images, labels * 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_one_class, "at least two classes must have samples; all 100 are of class '0'"),
        (_one_sample, "each class must have at least 1 in each of train, val and test"),
        (_missing_class, "'1' has 0 in train, 0 in val, 0 in test"),
        (lambda x, y: (x[:0], y[:0]), "the data must hold samples; it holds none"),
        (lambda x, y: (x[:2], y[:2]), "no split may be empty; "),
    ],
)
def test_too_little_data_is_refused(tmp_path: Path, spoil: object, message: str) -> None:
    images, labels = spoil(*random_images(100))  # type: ignore[operator]
    path = write_npz(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(BadData) as caught:
        prepare(tmp_path / "out", source="npz", path=path)
    assert message in caught.value.sentence
    assert int(caught.value.code) == 65


def test_min_per_class_names_the_short_classes(tmp_path: Path) -> None:
    images, labels = random_images(200)
    path = write_npz(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(BadData, match=r"at least 30 in each of train, val and test .*'0' has \d+ in train"):
        prepare(tmp_path / "out", source="npz", path=path, split={"min_per_class": 30})


def test_when_every_sample_is_dropped_it_says_so(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=np.full((50, 2), np.nan), y=np.arange(50) % 2)
    with pytest.raises(BadData, match=r"it holds none \(50 bad ones were dropped\)"):
        prepare(tmp_path / "out", source="npz", path=path, on_bad_sample="drop")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """What the stage needs to run as a process: params.yaml, dvc.yaml and the code."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def _run(workspace: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stages.prepare_data"]
    return subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)


def _set_data(workspace: Path, line: str) -> None:
    lines = (workspace / "params.yaml").read_text().splitlines()
    changed = [f"data: {line}" if text.startswith("data:") else text for text in lines]
    (workspace / "params.yaml").write_text("\n".join(changed) + "\n")


def test_as_a_process_it_leaves_the_artifact_and_imports_no_torch(workspace: Path) -> None:
    (workspace / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = _run(workspace)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("prepare_data: ")
    first = digest(workspace / "artifacts")
    prepared = Prepared.open(workspace / "artifacts/prepare_data/data")
    assert len(prepared.labels) == 1797
    assert _run(workspace).returncode == 0
    assert digest(workspace / "artifacts") == first
    # A failure afterwards leaves the former artifact, and nothing half-written beside it.
    _set_data(workspace, "{source: npz, path: missing.npz}")
    done = _run(workspace)
    assert done.returncode == 65
    assert "data.path: missing.npz does not exist; an .npz file is required" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert digest(workspace / "artifacts") == first
    assert json.loads((workspace / ".shipway/last/prepare_data.json").read_text())["code"] == 65


def test_as_a_process_a_factory_that_cannot_be_imported_ends_with_64(workspace: Path) -> None:
    _set_data(workspace, "{source: 'nowhere.at_all:factory', path: stages/data/digits.npz}")
    done = _run(workspace)
    assert done.returncode == 64
    assert "nowhere.at_all cannot be imported: ModuleNotFoundError" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_as_a_process_on_a_full_disk_it_ends_with_74_and_leaves_nothing(workspace: Path) -> None:
    write_npz(workspace / "a.npz", x=np.random.default_rng(0).normal(size=(30_000, 20)), y=np.arange(30_000) % 2)
    _set_data(workspace, "{source: npz, path: a.npz}")
    command = ["bash", "-c", 'ulimit -f 500; exec "$0" -m stages.prepare_data', sys.executable]  # 500 KiB a file.
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 74, done.stdout + done.stderr
    assert "File too large" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert [path for path in (workspace / "artifacts").rglob("*") if path.is_file()] == []
