"""Line charts as inline SVG. Colours come from the page's style, so that a chart follows light and dark."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stages.diagnosis.history import Floats

WIDTH, HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 26, 34
_MAX_POINTS = 400
_LOG_RATIO = 100.0
"""Positive values that span more than this are drawn on a logarithmic axis."""


@dataclass(frozen=True)
class Series:
    """One line. `kind` is a class of the page's style: `train`, `val` or `faint`."""

    name: str
    x: Floats
    y: Floats
    kind: str


@dataclass(frozen=True)
class Axes:
    """Maps values to pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point; a value outside is drawn at the edge."""
        return self.x(x), self.y(y)

    def x(self, value: float) -> float:
        """Pixel column of a value."""
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Pixel row of a value."""
        low, high, value = map(_log, (self.y_low, self.y_high, value)) if self.log else (self.y_low, self.y_high, value)
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    stretch: tuple[float, float] | None = None,
    *,
    may_be_log: bool = True,
) -> str:
    """An SVG element. `stretch` is shaded: where a finding's evidence lies. Values that are not finite break a line."""
    drawn = [one for one in series if one.x.size and np.isfinite(one.y).any()]
    if not drawn:
        return f'<p class="nothing">{html.escape(title)}: nothing was recorded.</p>'
    axes = _axes(drawn, may_be_log=may_be_log)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f"<title>{html.escape(title)}</title>",
        _shade(axes, stretch),
        *_grid(axes),
        *(_line(axes, one) for one in drawn),
        *_legend(drawn),
        f'<text class="title" x="{_LEFT}" y="15">{html.escape(title)}{" (logarithmic)" if axes.log else ""}</text>',
        f'<text class="label" x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{html.escape(x_label)}</text>',
        "</svg>",
    ]
    return "".join(parts)


def _axes(series: Sequence[Series], *, may_be_log: bool) -> Axes:
    x = np.concatenate([one.x for one in series])
    y = np.concatenate([one.y[np.isfinite(one.y)] for one in series])
    low, high = float(y.min()), float(y.max())
    log = may_be_log and low > 0 and high / low > _LOG_RATIO
    if not log:
        room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
        low, high = (0.0 if 0 <= low < 0.3 * high else low - room), high + room
    x_low, x_high = float(x.min()), float(x.max())
    return Axes(x_low, x_high if x_high > x_low else x_low + 1.0, low, high, log)


def _grid(axes: Axes) -> list[str]:
    parts = []
    for value in _log_ticks(axes.y_low, axes.y_high) if axes.log else _ticks(axes.y_low, axes.y_high, 5):
        y = axes.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="label" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(axes.x_low, axes.x_high, 6):
        x, y = axes.x(value), HEIGHT - _BOTTOM + 14
        anchor = "end" if x > WIDTH - _RIGHT - 20 else "middle"
        parts.append(f'<text class="label" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{value:g}</text>')
    return parts


def _shade(axes: Axes, stretch: tuple[float, float] | None) -> str:
    if stretch is None:
        return ""
    left, right = (axes.x(min(max(edge, axes.x_low), axes.x_high)) for edge in stretch)
    width = max(right - left, 3.0)
    return f'<rect class="stretch" x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{HEIGHT - _TOP - _BOTTOM}"/>'


def _line(axes: Axes, series: Series) -> str:
    x, y = thin(series.x, series.y)
    path, pen_down = [], False
    for at, value in zip(x, y, strict=True):
        if not math.isfinite(value):
            pen_down = False
            continue
        column, row = axes.at(float(at), float(value))
        path.append(f"{'L' if pen_down else 'M'}{column:.1f} {row:.1f}")
        pen_down = True
    return f'<path class="{series.kind}" d="{"".join(path)}"/>'


def thin(x: Floats, y: Floats, limit: int = _MAX_POINTS) -> tuple[Floats, Floats]:
    """At most about `limit` points: of each block the lowest and the highest, so that spikes stay; NaN stays too."""
    if len(x) <= limit:
        return x, y
    kept: set[int] = {0, len(x) - 1}
    for block in np.array_split(np.arange(len(x)), limit // 2):
        finite = block[np.isfinite(y[block])]
        kept.update(map(int, block[~np.isfinite(y[block])][:1]))
        if finite.size:
            kept.update((int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])])))
    order = sorted(kept)
    return x[order], y[order]


def _legend(series: Sequence[Series]) -> list[str]:
    parts, x = [], WIDTH - _RIGHT
    for one in reversed(series):
        x -= 7 * len(one.name) + 26
        parts.append(f'<line class="{one.kind}" x1="{x}" x2="{x + 16}" y1="11" y2="11"/>')
        parts.append(f'<text class="label" x="{x + 20}" y="15">{html.escape(one.name)}</text>')
    return parts


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round values between low and high."""
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
    first = math.ceil(low / step)
    return [round(at * step, 12) for at in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    stride = max(1, len(powers) // 6)
    return [10.0**power for power in powers[::stride] if low <= 10.0**power <= high]


def _log(value: float) -> float:
    return math.log10(max(value, 1e-300))
