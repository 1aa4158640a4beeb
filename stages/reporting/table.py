"""The one table: a row per model variant, the teacher in float first."""

from collections.abc import Sequence

from stages.reporting.collecting import Row

HEADINGS = ("variant", "type", "accuracy", "macro F1", "size KiB", "parameters", "MACs", "p50 ms", "p95 ms")
NOTHING = "-"


def cells(row: Row) -> list[str]:
    """One row's cells, as text."""
    return [
        row.name,
        row.number_type or NOTHING,
        _share(row.accuracy),
        _share(row.macro_f1),
        NOTHING if row.size_bytes is None else f"{row.size_bytes / 1024:,.1f}",
        NOTHING if row.params is None else f"{row.params:,}",
        NOTHING if row.macs is None else f"{row.macs:,}",
        NOTHING if row.p50_ms is None else f"{row.p50_ms:.3f}",
        NOTHING if row.p95_ms is None else f"{row.p95_ms:.3f}",
    ]


def text(rows: Sequence[Row]) -> list[str]:
    """The table as plain lines that align in a terminal and in a pipe."""
    lines = [list(HEADINGS), *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    shown = [_line(line, widths) for line in lines]
    return [shown[0], "-" * len(shown[0]), *shown[1:]]


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    names = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
    return "  ".join([*names, *numbers]).rstrip()


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4f}"
