"""What one stage left, for a screen that is not the report: a table, a few lines of Markdown, the loss curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stages.diagnosis.history import read_history
from stages.reporting.charts import Series, line_chart
from stages.reporting.style import CSS
from stages.runtime.exits import BadData
from stages.runtime.files import read_json

ARTIFACTS, LAST = Path("artifacts"), Path(".shipway/last")
_MAX_ROWS = 60
_SVG = "<svg "


def view(stage: str, root: Path = ARTIFACTS, last: Path = LAST) -> dict[str, Any]:
    """`table`: rows of metrics and gate values; `markdown`: verdict or decision; `svg`: loss by epoch, or None.

    `stage` is a name of dvc.yaml (`train`, `diagnose@train`). What is not there is left out.
    """
    name, _, instance = stage.partition("@")
    folder = root / name / instance if instance else root / name
    evidence = _json(last / f"{stage}.json").get("evidence", {})
    return {
        "table": _table(_json(folder / "metrics.json"), evidence),
        "markdown": _verdict(_json(folder / "verdict.json")) or _decision(folder),
        "svg": _curves(stage, folder / "history"),
    }


def _json(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _table(metrics: Mapping[str, Any], evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    variants = metrics.get("variants")
    if isinstance(variants, Mapping):
        return [{"variant": name, **dict(_flat("", row))} for name, row in variants.items()]
    pairs = dict(_flat("", metrics)) | dict(_flat("", evidence))
    return [{"name": name, "value": value} for name, value in list(pairs.items())[:_MAX_ROWS]]


def _flat(path: str, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Scalars by dotted name; lists are for the report."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            pairs += _flat(f"{path}{name}.", value)
        elif isinstance(value, str | int | float | bool):
            pairs.append((f"{path}{name}", value))
    return pairs


def _verdict(verdict: Mapping[str, Any]) -> str:
    lines = []
    for finding in verdict.get("findings", []):
        lines.append(
            f"- **{finding['verdict']}** ({finding['severity']}): {finding['cause']} {finding['prescription']}"
        )
    return "\n".join(lines)


def _decision(folder: Path) -> str:
    found = sorted(folder.glob("*/decision.json"))
    return "\n".join(
        f"- {name}: {value}" for path in found for name, value in _flat("", _json(path)) if len(str(value)) < 500
    )


def _curves(stage: str, history: Path) -> str | None:
    if not (history / "epochs.jsonl").is_file():
        return None
    try:
        epochs = read_history(history).epochs
    except BadData:
        return None
    x = np.arange(1, len(epochs.train_loss) + 1, dtype=np.float64)
    lines = [Series("train", x, epochs.train_loss, "train"), Series("validation", x, epochs.val_loss, "val")]
    chart = line_chart(f"{stage}: loss", lines, "epoch")
    if not chart.startswith(_SVG):
        return None  # Nothing was recorded: a skipped stage.
    opening, rest = chart.split(">", 1)
    return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{CSS}</style>{rest}'
