"""From a history to one verdict: the cause, its symptoms, what to change."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from stages.config.diagnose import Diagnose
from stages.diagnosis.curves import end_level, start_level
from stages.diagnosis.finding import Change, Finding
from stages.diagnosis.history import History, read_history
from stages.diagnosis.rules.nonfinite import first_nonfinite
from stages.diagnosis.rules.registry import AT_ONCE, RULES, Rule

__all__ = ["Verdict", "diagnose", "read_history"]

MIN_STEPS = 10
_SEVERITIES = ("fatal", "fault", "warning")


@dataclass(frozen=True)
class Verdict:
    """What a doctor would say of this training."""

    verdict: str
    """The cause: `healthy`, `skipped`, `too_short`, or the first finding's verdict."""
    passed: bool
    sentence: str
    """One line for a person: the cause, and what to change."""
    findings: list[Finding]
    """The cause first, its symptoms after it; empty when there is nothing to report."""
    checked: dict[str, str]
    """Every rule -> `found`, `clear` or `not applicable`: the way that led here."""

    @property
    def prescription(self) -> list[Change]:
        """What the cause's finding proposes."""
        return self.findings[0].prescription if self.findings else []

    def as_json(self) -> dict[str, Any]:
        """JSON-ready values, for `verdict.json`."""
        return dataclasses.asdict(self)


def diagnose(history: History, params: Diagnose) -> Verdict:
    """Applies the rules. A pure function: the same history and thresholds give the same verdict."""
    if history.status == "skipped":
        why = history.reason or "the stage is switched off"
        return Verdict("skipped", True, f"skipped: nothing was trained ({why})", [], {})
    short = len(history.epochs) < params.min_epochs or len(history.steps) < MIN_STEPS
    rules = AT_ONCE if short else RULES
    findings, checked = _apply(rules, history, params)
    failing = [f for f in findings if f.severity != "warning" and f.verdict in params.fail_on]
    passed = not failing and history.status == "finished"
    if findings:
        cause = findings[0]
        return Verdict(cause.verdict, passed, _sentence(cause, findings[1:], passed), findings, checked)
    if short:
        sentence = (
            f"too short to say: {len(history.epochs)} epochs and {len(history.steps)} steps, "
            f"at least {params.min_epochs} and {MIN_STEPS} are needed"
        )
        return Verdict("too_short", passed, sentence, [], checked)
    return Verdict("healthy", passed, f"healthy: {_course(history)}", [], checked)


def _apply(rules: tuple[Rule, ...], history: History, params: Diagnose) -> tuple[list[Finding], dict[str, str]]:
    checked = {rule.__name__: "not applicable" for rule in RULES}
    first = first_nonfinite(history)
    findings = []
    for rule in rules:
        seen = history
        if first is not None and rule.__name__ != "nan":
            seen = before(history, first[0])
            if len(seen.epochs) < params.min_epochs or len(seen.steps) < MIN_STEPS:
                continue
        found = rule(seen, params) if len(seen.steps) or rule.__name__ == "nan" else None
        checked[rule.__name__] = "found" if found else "clear"
        if found:
            findings.append(found)
    return sorted(findings, key=lambda f: _SEVERITIES.index(f.severity) // 2), checked  # Stable: causal order within.


def before(history: History, step: int) -> History:
    """The history up to, and without, an optimizer step: all values finite when that is the first bad one."""
    return dataclasses.replace(
        history,
        steps=_rows(history.steps, history.steps.step < step),
        epochs=_rows(history.epochs, history.epochs.step < step),
    )


def _rows(table: Any, keep: Any) -> Any:
    columns = {f.name: getattr(table, f.name) for f in dataclasses.fields(table)}
    return type(table)(**{name: values[keep] if values.size else values for name, values in columns.items()})


def _sentence(cause: Finding, symptoms: list[Finding], passed: bool) -> str:
    parts = [f"{cause.verdict}{' (passes with a warning)' if passed else ''}: {cause.cause}"]
    if symptoms:
        parts.append(f"symptoms: {', '.join(dict.fromkeys(s.verdict for s in symptoms))}")
    if cause.prescription:
        parts.append(f"try {', '.join(map(str, cause.prescription))}")
    return "; ".join(parts)


def _course(history: History) -> str:
    accuracy = history.epochs.val_accuracy
    end = f", validation accuracy {accuracy.max():.1%}" if accuracy.size else ""
    loss = history.steps.loss
    return f"train loss {start_level(loss):.3g} -> {end_level(loss):.3g} over {len(history.epochs)} epochs{end}"
