"""The report as one HTML file: nothing is fetched, everything that comes from data is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stages.diagnosis.history import History
from stages.reporting.charts import Series, line_chart
from stages.reporting.collecting import Collected, Training
from stages.reporting.lines import counts_in_words, flat, in_order, short
from stages.reporting.style import CSS
from stages.reporting.table import HEADINGS, NOTHING, cells

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NAMES = {"train": "Teacher (train)", "distill": "Student (distill)", "prune": "Pruned student (prune)"}
_SPLITS = ("train", "val", "test", "calibration")
_MAX_CONFUSION_CLASSES = 40


def page(found: Collected, bundle: Mapping[str, Any] | None) -> str:
    """The whole page. `bundle` is what `provenance.describe` says of the bundle."""
    sections = [
        _section("Model variants", _variants(found)),
        _section("Targets", _targets(found)),
        _section("Trainings and their diagnosis", "".join(map(_training, found.trainings))),
        _section("Decisions", _decisions(found)),
        _section("Data", _data(found)),
        _section("Confusion matrix of the final model, test split", _confusion(found)),
        _section("Where the bundle comes from", _provenance(bundle)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Shipway report</title><style>{CSS}</style></head><body><h1>Shipway report</h1>"
        f"{_lead(found)}{_notes(found.notes)}{''.join(sections)}</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _nothing(what: str, stage: str) -> str:
    return f'<p class="nothing">{escape(what)}: make it with <code>shipway run {escape(stage)}</code>.</p>'


def _lead(found: Collected) -> str:
    if found.rows:
        first, last = found.rows[0], found.rows[-1]
        if first.size_bytes and last.size_bytes and first.accuracy is not None and last.accuracy is not None:
            smaller = first.size_bytes / last.size_bytes
            points = 100 * (last.accuracy - first.accuracy)
            faster = f", {first.p50_ms / last.p50_ms:.1f} times faster" if first.p50_ms and last.p50_ms else ""
            text = f"The {last.number_type} model is {smaller:.1f} times smaller{faster}, at {points:+.2f} points of "
            return f'<p class="soft">{escape(text)}accuracy against the {escape(first.name)} in float.</p>'
    return '<p class="soft">The pipeline has not measured its models yet.</p>'


def _notes(notes: Sequence[str]) -> str:
    return "".join(f'<p class="warn">{escape(note)}</p>' for note in notes)


def _variants(found: Collected) -> str:
    if not found.rows:
        return _nothing("No model is profiled yet", "profile_model")
    rows = [cells(row) for row in found.rows]
    return _table(HEADINGS, rows, names=2)


def _table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], names: int, wrap: frozenset[int] = frozenset()
) -> str:
    head = "".join(
        f'<th class="{"name" if at < names else ""}">{escape(text)}</th>' for at, text in enumerate(headings)
    )
    body = []
    for number, row in enumerate(rows):
        kinds = ["wrap" if at in wrap else "name" if at < names else "" for at in range(len(row))]
        line = "".join(f'<td class="{kind}">{escape(text)}</td>' for kind, text in zip(kinds, row, strict=True))
        body.append(f'<tr class="{"last" if number == len(rows) - 1 and not wrap else ""}">{line}</tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _targets(found: Collected) -> str:
    if not found.targets:
        return '<p class="nothing">No targets are set (params.yaml, section targets), or none were checked yet.</p>'
    rows = [
        [
            str(t["name"]),
            f"{t['bound']:g}",
            f"{t['got']:.6g}" if "got" in t else NOTHING,
            "holds" if t["holds"] else "missed",
        ]
        for t in found.targets
    ]
    return _table(("target", "bound", "got", "result"), rows, names=1)


def _training(training: Training) -> str:
    title = f"<h3>{escape(_NAMES.get(training.stage, training.stage))}</h3>"
    if training.history is None:
        return f'<div class="card">{title}{_nothing("Not trained yet", training.stage)}</div>'
    verdict = training.verdict
    head = f'<div class="head">{title}{_badge(verdict)}</div>'
    if verdict is None:
        said = _nothing("Not diagnosed yet", "diagnose")
    else:
        findings = "".join(map(_finding, verdict["findings"]))
        said = findings or f"<p>{escape(str(verdict['sentence']))}</p>"  # The sentence repeats the first finding.
    charts = "" if training.history.status == "skipped" else _charts(training.history, _stretch(verdict))
    return f'<div class="card">{head}{said}{charts}</div>'


def _badge(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return ""
    quiet = verdict["verdict"] in ("healthy", "skipped")
    kind = "bad" if not verdict["passed"] else "good" if quiet else "warn"
    return f'<span class="badge {kind}">{escape(str(verdict["verdict"]))}</span>'


def _finding(finding: Mapping[str, Any]) -> str:
    evidence = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(short(value))}</dd>"
        for name, value in finding["evidence"].items()
    )
    steps = finding["steps"]
    where = f"<dt>steps</dt><dd>{steps[0]} to {steps[1]}</dd>" if steps else ""
    changes = "".join(_change(change) for change in finding["prescription"])
    name, severity = escape(str(finding["verdict"])), escape(str(finding["severity"]))
    return (
        f'<div class="finding"><p><b>{name}</b> <span class="soft">{severity}, confidence {finding["confidence"]:.0%}'
        f"</span><br>{escape(finding['cause'])}.</p><dl>{where}{evidence}</dl>{changes}</div>"
    )


def _change(change: Mapping[str, Any]) -> str:
    now = "?" if change["current"] is None else short(change["current"])
    text = f"{change['key']}: {now} → {short(change['proposed'])}"
    return f'<p><code>{escape(text)}</code> <span class="soft">{escape(change["why"])}</span></p>'


def _stretch(verdict: Mapping[str, Any] | None) -> tuple[float, float] | None:
    findings = verdict["findings"] if verdict else []
    return (
        (float(findings[0]["steps"][0]), float(findings[0]["steps"][1])) if findings and findings[0]["steps"] else None
    )


def _charts(history: History, stretch: tuple[float, float] | None) -> str:
    steps, epochs = history.steps, history.epochs
    x, at = steps.step.astype(float), epochs.step.astype(float)
    loss = [
        Series("each step", x, steps.loss, "faint"),
        Series("train", at, epochs.train_loss, "train"),
        Series("validation", at, epochs.val_loss, "val"),
    ]
    accuracy = [
        Series("train", at, epochs.train_accuracy, "train"),
        Series("validation", at, epochs.val_accuracy, "val"),
    ]
    norm = [Series("each step", x, steps.grad_norm, "faint")]
    drawn = [
        line_chart("loss", loss, "optimizer step", stretch),
        line_chart("accuracy", accuracy, "optimizer step", stretch),
        line_chart("gradient norm", norm, "optimizer step", stretch),
        line_chart("learning rate", [Series("each step", x, steps.lr, "train")], "optimizer step", may_be_log=False),
    ]
    return f'<div class="charts">{"".join(drawn)}</div>'


def _decisions(found: Collected) -> str:
    if not found.decisions:
        return '<p class="nothing">Nothing was decided yet.</p>'
    rows = [[one.what, one.choice, one.why] for one in found.decisions]
    return _table(("what", "choice", "why"), rows, names=3, wrap=frozenset({2}))


def _data(found: Collected) -> str:
    info = found.info
    if info is None:
        return _nothing("No data is prepared yet", "prepare_data")
    counts: Mapping[str, Any] = info["counts"]
    splits = [name for name in _SPLITS if name in counts] + [name for name in counts if name not in _SPLITS]
    rows = [[str(name), *(f"{counts[split][at]:,}" for split in splits)] for at, name in enumerate(info["classes"])]
    rows.append(["all", *(f"{sum(counts[split]):,}" for split in splits)])
    dropped, duplicates = counts_in_words(info["dropped"]), counts_in_words(info["duplicates"])
    about = f"Samples of shape {info['shape']}, {info['dtype']}; dropped: {dropped}; duplicates: {duplicates}. "
    about += f"Content hash {info['hash']}."
    return f'<p class="soft">{escape(about)}</p>{_table(["class", *map(str, splits)], rows, names=1)}'


def _confusion(found: Collected) -> str:
    if not found.confusion:
        return _nothing("Not measured yet", "profile_model")
    seen = {name for pair in found.confusion for name in pair}
    known = [str(name) for name in (found.info or {}).get("classes", [])]
    classes = [name for name in known if name in seen] + sorted(seen - set(known))
    if len(classes) > _MAX_CONFUSION_CLASSES:
        return (
            f'<p class="nothing">{len(classes)} classes: see artifacts/profile_model/confusion.csv.</p>{_worst(found)}'
        )
    head = "".join(f"<th>{escape(name)}</th>" for name in classes)
    body = []
    for actual in classes:
        row = [found.confusion.get((actual, predicted), 0) for predicted in classes]
        whole = sum(row) or 1
        line = "".join(f'<td style="--share: {count / whole:.3f}">{count or ""}</td>' for count in row)
        body.append(f'<tr><th class="name">{escape(actual)}</th>{line}</tr>')
    return (
        '<p class="soft">Rows: the actual class; columns: the predicted one.</p><div class="scroll">'
        f'<table class="confusion"><tr><th></th>{head}</tr>{"".join(body)}</table></div>'
    )


def _worst(found: Collected, shown: int = 10) -> str:
    wrong = sorted(((n, pair) for pair, n in found.confusion.items() if pair[0] != pair[1]), reverse=True)[:shown]
    rows = [[actual, predicted, str(count)] for count, (actual, predicted) in wrong]
    return _table(("actual", "predicted", "count"), rows, names=2)


def _provenance(bundle: Mapping[str, Any] | None) -> str:
    if bundle is None:
        return _nothing("There is no bundle yet", "bundle")
    made, identity = bundle["made"], bundle["identity"] or {}
    tree = "not known" if made.get("dirty") is None else "uncommitted changes" if made["dirty"] else "clean"
    facts = {
        "path": bundle["path"], "digest": bundle["digest"], "commit": made.get("commit") or "not known",
        "tree": tree, "branch": made.get("branch"), "found by": made.get("how"), "time": made.get("time"),
        "host": made.get("host"), "code": identity.get("code"), "data": identity.get("data"),
        "versions": ", ".join(f"{name} {number}" for name, number in identity.get("versions", {}).items()),
    }  # fmt: skip
    shown = _facts((name, str(value)) for name, value in facts.items() if value)
    ancestors = identity.get("ancestors", {})
    stages = in_order({**ancestors, identity["stage"]: identity}) if identity else {}
    params = "".join(
        f"<details><summary>{escape(stage)}</summary>{_facts(flat(one['params']))}</details>"
        for stage, one in stages.items()
    )
    return f'{_notes(bundle["notes"])}{shown}<p class="soft">Parameters of each stage:</p>{params}'


def _facts(pairs: Iterable[tuple[str, Any]]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd><code>{escape(short(value))}</code></dd>" for name, value in pairs)
    return f"<dl>{lines}</dl>"
