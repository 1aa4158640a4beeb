"""What a rule finds: a verdict with evidence, a cause in plain words, and what to change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from stages.diagnosis.history import History

Severity = Literal["fatal", "fault", "warning"]
"""`fatal`: the weights are useless; `fault`: a gate may stop for it; `warning`: passes whatever `fail_on` says."""


@dataclass(frozen=True)
class Change:
    """One proposed edit of params.yaml."""

    key: str
    current: JsonValue
    """The value of the diagnosed run; None where the record does not tell."""
    proposed: JsonValue
    why: str
    known: bool = True
    """False: the record does not tell the present value."""

    def __str__(self) -> str:
        return f"{self.key}: {_show(self.current) if self.known else '?'} -> {_show(self.proposed)}"


@dataclass(frozen=True)
class Finding:
    """One rule's result."""

    verdict: str
    severity: Severity
    cause: str
    """What is wrong and why, for a person; a whole sentence without its full stop."""
    evidence: Mapping[str, JsonValue]
    steps: tuple[int, int] | None = None
    """First and last optimizer step of the stretch that is the evidence."""
    prescription: list[Change] = field(default_factory=list)
    confidence: float = 0.8
    """From 0 to 1: how sure the rule is that its cause is the right one."""


def scaled(history: History, name: str, factor: float, why: str) -> list[Change]:
    """The training's setting `name`, times a factor; nothing where its present value is not known."""
    key = f"{history.fit_key}.{name}"
    current = _setting(history, key, name)
    if not isinstance(current, int | float) or isinstance(current, bool) or current == 0:
        return []
    if name == "lr" and factor < 1.0 and history.lr_factor < 1.0:  # What rollbacks came down to has failed, too.
        factor = min(factor, 0.5 * history.lr_factor)
    value = current * factor
    return [Change(key, current, round(value) if isinstance(current, int) else significant(value), why)]


def to(history: History, name: str, value: JsonValue, why: str) -> list[Change]:
    """The training's setting `name` set to a value; nothing where it has it already."""
    key = f"{history.fit_key}.{name}"
    current = _setting(history, key, name)
    known = key in history.settings or current is not None
    return [] if current == value else [Change(key, current, value, why, known)]


def significant(value: float, digits: int = 2) -> float:
    """Rounded to a few significant digits: what a person would write."""
    return float(f"{value:.{digits}g}")


def _setting(history: History, key: str, name: str) -> Any:
    if key in history.settings:
        return history.settings[key]
    if name == "lr" and history.steps.lr.size:
        return float(history.steps.lr.max())
    return history.clip_norm if name == "clip_norm" else None


def _show(value: JsonValue) -> str:
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) else str(value)
