"""The charts: every finite value is drawn inside the picture, spikes survive thinning, NaN breaks the line."""

import re

import numpy as np
import pytest

from stages.reporting.charts import HEIGHT, WIDTH, Series, line_chart, thin


def series(y: list[float]) -> Series:
    return Series("train", np.arange(1.0, len(y) + 1), np.array(y), "train")


def points(svg: str) -> list[tuple[str, float, float]]:
    (path,) = re.findall(r'<path class="train" d="([^"]*)"', svg)
    return [(kind, float(x), float(y)) for kind, x, y in re.findall(r"([ML])([\d.-]+) ([\d.-]+)", path)]


@pytest.mark.parametrize("values", [[1, 2, 3], [5, 5, 5], [0, 0], [1e-6, 1, 1e6], [-3, 4], [7.0], [1e300, 1e-300]])
def test_values_lie_inside_the_picture(values: list[float]) -> None:
    drawn = points(line_chart("loss", [series(values)], "step"))
    assert len(drawn) == len(values)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for _, x, y in drawn)


def test_a_value_that_is_not_finite_breaks_the_line() -> None:
    drawn = points(line_chart("loss", [series([1, 2, np.nan, 3, np.inf, 4])], "step"))
    assert [kind for kind, _, _ in drawn] == ["M", "L", "M", "M"]


def test_nothing_to_draw_is_said() -> None:
    assert "nothing was recorded" in line_chart("loss", [series([np.nan, np.inf])], "step")
    assert "nothing was recorded" in line_chart("loss", [series([])], "step")


def test_thinning_keeps_spikes_ends_and_gaps() -> None:
    y = np.ones(10_000)
    y[1234], y[5678] = 99.0, np.nan
    x, kept = thin(np.arange(10_000.0), y)
    assert len(x) < 450
    assert 99.0 in kept
    assert np.isnan(kept).sum() == 1
    assert (x[0], x[-1]) == (0, 9_999)
    assert np.all(np.diff(x) > 0)


def test_a_stretch_is_shaded_inside_the_axes() -> None:
    svg = line_chart("loss", [series([1.0, 2.0, 3.0])], "step", (-5.0, 2.0))
    x, width = map(float, re.findall(r'class="stretch" x="([\d.]+)" y="\d+" width="([\d.]+)"', svg)[0])
    assert x >= 0
    assert x + width <= WIDTH


def test_labels_are_escaped() -> None:
    svg = line_chart("<i>", [Series("<b>", np.ones(2), np.ones(2), "train")], "<u>")
    assert not re.search(r"<[ibu]>", svg)
