"""Windows and micro-batches: every sample once, no single one left over, windows free of the micro-batch."""

import pytest

from stages.training.windows import micro_sizes, window_sizes


def test_examples() -> None:
    assert window_sizes(10, 4) == [4, 4, 2]
    assert window_sizes(8, 4) == [4, 4]
    assert window_sizes(9, 4) == [4, 5]
    assert window_sizes(3, 64) == [3]
    assert window_sizes(1, 64) == [1]
    assert window_sizes(3, 1) == [1, 1, 1]
    assert window_sizes(0, 4) == []
    assert micro_sizes(8, 4) == [4, 4]
    assert micro_sizes(5, 4) == [5]
    assert micro_sizes(6, 4) == [4, 2]
    assert micro_sizes(3, 8) == [3]
    assert micro_sizes(3, 1) == [1, 1, 1]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7, 8, 16, 30, 64])
def test_every_sample_comes_once_and_none_alone(batch_size: int) -> None:
    for samples in range(1, 131):
        windows = window_sizes(samples, batch_size)
        assert sum(windows) == samples
        assert windows[:-1] == [batch_size] * (len(windows) - 1)
        assert 1 <= windows[-1] <= batch_size + (batch_size > 1)
        assert len(windows) == 1 or min(windows) > 1 or batch_size == 1
        for micro_batch in range(1, batch_size + 1):
            micros = [micro_sizes(window, micro_batch) for window in windows]
            assert [sum(sizes) for sizes in micros] == windows, "a micro-batch must not move a window's border"
            for sizes in micros:
                assert sizes[:-1] == [micro_batch] * (len(sizes) - 1)
                assert 1 <= sizes[-1] <= micro_batch + (micro_batch > 1)
                assert sum(sizes) == 1 or 1 not in sizes or micro_batch == 1


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="size >= 1; got 4 and 0"):
        window_sizes(4, 0)
    with pytest.raises(ValueError, match="total >= 0 and size >= 1; got -1 and 2"):
        micro_sizes(-1, 2)
