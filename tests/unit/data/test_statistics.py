"""Mean and standard deviation: exact for uint8, stable for float32, never a std of 0."""

from fractions import Fraction

import numpy as np
import pytest

from stages.data.statistics import CHUNK_ROWS, moments

RANDOM = np.random.default_rng(0)


def test_uint8_is_exact_in_any_order_and_chunking() -> None:
    images = RANDOM.integers(0, 256, (2 * CHUNK_ROWS + 7, 3, 2, 2), dtype=np.uint8)
    indices = np.arange(len(images))
    mean, std = moments(images, indices)
    for channel in range(2):
        values = [int(v) for v in images[..., channel].ravel()]
        exact = Fraction(sum(values), 255 * len(values))
        assert mean[channel] == float(exact)
        assert std[channel] == pytest.approx(np.std(np.array(values) / 255.0), rel=1e-12)
    assert moments(images, RANDOM.permutation(indices)) == (mean, std)


def test_float32_far_from_zero_keeps_its_variance_over_chunks() -> None:
    table = RANDOM.normal(1e6, 1.0, (3 * CHUNK_ROWS + 5, 3)).astype(np.float32)
    chosen = RANDOM.permutation(len(table))[: 2 * CHUNK_ROWS + 1]
    mean, std = moments(table, chosen)
    wide = table[chosen].astype(np.float64)
    assert mean == pytest.approx(wide.mean(axis=0), rel=1e-13)
    assert std == pytest.approx(wide.std(axis=0), rel=1e-9)


@pytest.mark.parametrize(
    "samples",
    [
        np.full((3000, 4, 4, 2), 77, dtype=np.uint8),
        np.full((3000, 2), 0.1, dtype=np.float32),
        np.full((3000, 4, 4, 2), -1e30, dtype=np.float32),
    ],
)
def test_what_never_varies_has_std_1(samples: np.ndarray) -> None:
    mean, std = moments(samples, np.arange(3000))
    assert std == (1.0, 1.0)
    scale = 255.0 if samples.dtype == np.uint8 else 1.0
    assert mean == (float(samples.flat[0]) / scale,) * 2


def test_only_the_chosen_samples_count() -> None:
    images = np.zeros((10, 2, 2, 1), dtype=np.uint8)
    images[3:] = 255
    assert moments(images, np.array([0, 1, 2])) == ((0.0,), (1.0,))
    assert moments(images, np.array([0, 5])) == ((0.5,), (0.5,))
