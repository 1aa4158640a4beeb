"""Which calibration samples are taken, and what is found to be wrong with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.data.prepared import Prepared
from stages.deployment import calibration, quantization
from stages.runtime.exits import BadData
from tests.unit.deployment.build import dense_net, write_prepared


def test_classes_are_taken_in_turn(tmp_path: Path) -> None:
    labels = np.zeros(400, np.int64)
    labels[::20] = 1
    samples = np.random.default_rng(0).normal(0, 1, (400, 3)).astype(np.float32)
    prepared = Prepared.open(write_prepared(tmp_path / "data", samples, labels, ["often", "rare"]))
    chosen = calibration.choose(prepared, 20, seed=0)
    assert chosen.per_class == (10, 10)
    assert np.array_equal(chosen.indices, calibration.choose(prepared, 20, seed=0).indices)
    assert not np.array_equal(chosen.indices, calibration.choose(prepared, 20, seed=1).indices)


def test_nan_is_refused_and_the_sample_is_named(rows: Callable[..., Prepared]) -> None:
    def spoil(samples: np.ndarray) -> None:
        samples[7, 3] = np.nan

    with pytest.raises(BadData, match="NaN or infinity in 1 samples: sample 7"):
        calibration.choose(rows(spoil), 1000, seed=0)


def test_one_class_only_is_refused(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(2), [200, 200]).astype(np.int64)
    samples = np.random.default_rng(0).normal(0, 1, (400, 3)).astype(np.float32)
    prepared = Prepared.open(write_prepared(tmp_path / "data", samples, labels, ["a", "b"]))
    with pytest.raises(BadData, match="at least two classes"):
        calibration.choose(prepared, 20, seed=0)


def test_clean_data_has_no_outlier(rows: Callable[..., Prepared]) -> None:
    assert calibration.choose(rows(), 1000, seed=0).outliers == ()


def test_a_sample_times_100_is_left_out_and_the_ranges_are_those_without_it(
    rows: Callable[..., Prepared], tmp_path: Path
) -> None:
    def spoil(samples: np.ndarray) -> None:
        samples[11] *= 100

    prepared = rows(spoil)
    chosen = calibration.choose(prepared, 1000, seed=0)
    assert chosen.outliers == (11,)
    path = tmp_path / "net.onnx"
    path.write_bytes(dense_net(prepared).SerializeToString())
    ready, note = quantization.preprocess(path)
    assert note is None
    found = calibration.activation_ranges(ready, prepared, chosen, "minmax", 1, tmp_path)
    largest = np.abs(prepared.read(chosen.indices)).max()
    assert max(map(abs, found["input"])) == pytest.approx(largest)
    assert largest < 20


def test_many_far_samples_are_what_the_data_looks_like(rows: Callable[..., Prepared]) -> None:
    def spoil(samples: np.ndarray) -> None:
        samples[::8] *= 100

    assert calibration.choose(rows(spoil), 1000, seed=0).outliers == ()


@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile", "entropy"])
def test_every_method_covers_most_of_what_was_seen(rows: Callable[..., Prepared], tmp_path: Path, method: str) -> None:
    prepared = rows()
    path = tmp_path / "net.onnx"
    path.write_bytes(dense_net(prepared).SerializeToString())
    ready, _ = quantization.preprocess(path)
    chosen = calibration.choose(prepared, 200, seed=0)
    found = calibration.activation_ranges(ready, prepared, chosen, method, 1, tmp_path)
    seen = prepared.read(chosen.indices)
    low, high = found["input"]
    assert np.mean((seen >= low) & (seen <= high)) > 0.98
    assert low >= seen.min() - 0.01
    assert high <= seen.max() + 0.01
    assert {"input", "features", "logits"} <= set(found)
    assert list(tmp_path.glob("watched*")) == []
