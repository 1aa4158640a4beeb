"""The candidate beside production on the present test split: the figures, the verdict, the table that shows both."""

import json
import sys
from pathlib import Path
from typing import Any

from flows import supervisor
from flows.ends import Refused
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, load

CANDIDATE, PRODUCTION = "candidate", "production"
_DIGITS = 9
"""0.91 - 0.9 is a little more than 0.01 in binary, and is not meant to be."""
BUNDLE = Path("artifacts/bundle")
_COLUMNS = ("digest", "accuracy", "macro_f1", "size_kib", "p50_ms", "samples")


Rows = dict[str, dict[str, Any]]
"""By name (`candidate`, `production`)."""


def compare(tree: Path, production: Path | None) -> Rows:
    """Scores the bundle of a working tree, and the one at `production`, on the tree's test split. Raises `Refused`."""
    bundles = {CANDIDATE: tree / BUNDLE, **({PRODUCTION: production} if production else {})}
    threads = str(load(tree / PARAMS_FILE)["threads"])
    given = [f"{name}={folder}" for name, folder in bundles.items()]
    command = [sys.executable, "-m", "stages.deployment", "compare", "--threads", threads, *given]
    code, printed = supervisor.call(command, cwd=tree, capture=True)
    if code:
        raise Refused(Exit(code), f"the bundles cannot be compared: `stages.deployment compare` ended with {code}")
    found: Rows = json.loads(printed)
    if found[CANDIDATE]["digest"] is None:
        raise Refused(Exit.DATA, f"the candidate cannot be compared: {found[CANDIDATE]['why']}")
    if production is not None:
        found[PRODUCTION]["digest"] = production.name  # Also of a damaged one: a better one may take its place.
    return found


def gain(rows: Rows, metric: str) -> float | None:
    """How much better the candidate is; None where production is empty or cannot take the present data."""
    former = rows.get(PRODUCTION, {}).get(metric)
    return None if former is None else round(float(rows[CANDIDATE][metric] - former), _DIGITS)


def verdict(rows: Rows, metric: str, min_gain: float) -> tuple[bool, str]:
    """Whether the candidate is better by the bound, in a sentence."""
    new = rows[CANDIDATE].get(metric)
    if new is None:
        return False, f"the candidate cannot be scored: {rows[CANDIDATE].get('why', 'no metric')}"
    found = gain(rows, metric)
    if PRODUCTION not in rows:
        return True, f"nothing is in production yet; {metric} of the candidate: {new:.4f}"
    if found is None:
        return True, f"production cannot take the present data ({rows[PRODUCTION]['why']}); {metric} here: {new:.4f}"
    better = found > min_gain
    how = "above" if better else "not above"
    return (
        better,
        f"{metric} {new:.4f} against {new - found:.4f} in production: {found:+.4f}, {how} the bound {min_gain:g}",
    )


def table(rows: Rows) -> str:
    """The two side by side as a Markdown table: narrow enough for the dialog that asks for approval."""
    lines = [f"| | {' | '.join(rows)} |", f"|---|{'---|' * len(rows)}"]
    for column in _COLUMNS:
        lines.append(f"| {column} | {' | '.join(_cell(row.get(column)) for row in rows.values())} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value[:12] if isinstance(value, str) else f"{value:g}"
