"""Ranges from extremes and histograms."""

import numpy as np
import pytest

from stages.deployment import ranges


def counts_of(values: np.ndarray) -> tuple[np.ndarray, ranges.Range]:
    whole = (float(values.min()), float(values.max()))
    return ranges.histogram(values.astype(np.float32), whole), whole


def test_minmax_sees_every_batch_and_the_average_dampens_one_bad_batch() -> None:
    seen = ranges.Extremes()
    for batch in ([-1.0, 2.0], [-3.0, 1.0], [0.0, 300.0], [-1.0, 2.0]):
        seen.see(np.array(batch, np.float32))
    assert seen.whole() == (-3.0, 300.0)
    assert seen.averaged() == (-1.25, 76.25)


def test_percentile_is_not_symmetric_and_cuts_a_lonely_outlier() -> None:
    values = np.concatenate([np.random.default_rng(0).uniform(0, 1, 100_000), [100.0]])
    low, high = ranges.percentile(*counts_of(values))
    assert low == pytest.approx(0.0, abs=0.06)
    assert high < 1.2


def test_percentile_keeps_the_share_that_it_promises() -> None:
    values = np.random.default_rng(0).normal(0, 1, 200_000)
    low, high = ranges.percentile(*counts_of(values), share=0.99)
    assert np.mean((values >= low) & (values <= high)) == pytest.approx(0.99, abs=0.002)


def test_entropy_clips_a_long_tail_and_keeps_a_uniform_range() -> None:
    random = np.random.default_rng(0)
    tail = np.concatenate([random.normal(0, 1, 200_000), random.uniform(20, 60, 20)])
    low, high = ranges.entropy(*counts_of(tail))
    assert 2.5 < high < 20
    assert low > -20
    uniform = random.uniform(-1, 1, 200_000)
    low, high = ranges.entropy(*counts_of(uniform))
    assert high > 0.9
    assert low < -0.9


def test_a_constant_tensor_gives_a_range_that_is_not_reversed() -> None:
    values = np.full(1000, 3.0)
    for find in (ranges.percentile, ranges.entropy):
        low, high = find(*counts_of(values))
        assert low <= high
        assert low <= 3.0 <= high + 1e-4
