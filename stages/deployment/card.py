"""The bundle's README.md: a model card. No time, host or path in it: equal inputs give equal bytes."""

import json
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from stages.data.prepared import Info

_ORDER = ("train", "distill", "prune")


def model_card(
    info: Info,
    decision: Mapping[str, Any],
    targets: Mapping[str, Any],
    verdicts: Mapping[str, Mapping[str, Any]],
    identity: Mapping[str, Any] | None,
) -> str:
    """Markdown. `decision` is decision.json of `quantize`, `targets` is targets.json, `identity` the bundle's own."""
    parts = [
        _head(info, decision, targets),
        _use(info),
        _quality(decision, targets),
        _trainings(verdicts),
        _data(info),
        _origin(identity),
    ]
    return "\n\n".join(parts) + "\n"


def _head(info: Info, decision: Mapping[str, Any], targets: Mapping[str, Any]) -> str:
    final = targets["final"]
    kind = "INT8" if decision["chosen"] == "int8" else "float32"
    taken = "images" if len(info.shape) == 3 else "rows"
    return (
        f"# Classifier of {taken}: {len(info.classes)} classes, {kind}\n\n"
        f"{final['params']:,} parameters, {final['macs']:,} multiply-accumulates per sample, "
        f"{final['size_bytes'] / 1024:,.1f} KiB. Accuracy on {info.splits['test']:,} test samples: "
        f"{final['accuracy']:.4f}, macro F1 {final['macro_f1']:.4f}, computed on the file in this folder."
    )


def _use(info: Info) -> str:
    shape = ", ".join(map(str, info.shape))
    return (
        "## Use\n\n"
        "```sh\n"
        "pip install numpy onnxruntime pillow\n"
        "python predict.py photo.png folder/ samples.npz   # a line per sample: source, label, probability\n"
        "python predict.py --json photo.png                # with the probability of every class\n"
        "python predict.py --check                         # checksums and stored predictions\n"
        "```\n\n"
        f"`model.onnx` takes `input`, {info.dtype} (N, {shape}): raw values, the normalisation is inside the graph. "
        f"It gives `logits`, float32 (N, {len(info.classes)}). `labels.json` names the classes in that order."
    )


def _quality(decision: Mapping[str, Any], targets: Mapping[str, Any]) -> str:
    base, final = targets["baseline"], targets["final"]
    rows = [
        ("", f"{plain(base['name'])}, float", f"this model, {decision['chosen']}"),
        ("accuracy", f"{base['accuracy']:.4f}", f"{final['accuracy']:.4f}"),
        ("macro F1", f"{base['macro_f1']:.4f}", f"{final['macro_f1']:.4f}"),
        ("size in KiB", f"{base['size_bytes'] / 1024:,.1f}", f"{final['size_bytes'] / 1024:,.1f}"),
        ("parameters", f"{base['params']:,}", f"{final['params']:,}"),
        ("multiply-accumulates", f"{base['macs']:,}", f"{final['macs']:,}"),
    ]
    lines = [_table(rows), "", f"Number type: {decision['chosen']}. Why: {plain(decision['reason'])}."]
    if decision.get("number_types"):
        lines.append(f"Number range: {plain(decision['number_types']['because'])}.")
    bounds = [
        f"`{row['name']}` {row['bound']:g}: {'holds' if row['holds'] else 'missed'}" for row in targets["targets"]
    ]
    lines += ["", "Targets: " + (", ".join(bounds) if bounds else "none were set") + "."]
    return "## Quality\n\n" + "\n".join(lines)


def _trainings(verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [("training", "verdict", "passed")]
    names = [name for name in _ORDER if name in verdicts] + sorted(set(verdicts) - set(_ORDER))
    rows += [
        (name, plain(str(verdicts[name]["verdict"])), "yes" if verdicts[name]["passed"] else "no") for name in names
    ]
    return "## Trainings\n\nVerdicts on the loss curves:\n\n" + _table(rows)


def _data(info: Info) -> str:
    names = [name for name in ("train", "val", "test", "calibration") if name in info.splits]
    rows: list[Sequence[str]] = [("class", *names)]
    rows += [
        (plain(label), *(str(info.counts[name][number]) for name in names)) for number, label in enumerate(info.classes)
    ]
    rows.append(("all", *(str(info.splits[name]) for name in names)))
    return (
        f"## Data\n\nContent hash {plain(info.hash)}. Calibration samples are a part of train; train, val and test "
        "share none.\n\n" + _table(rows)
    )


def _origin(identity: Mapping[str, Any] | None) -> str:
    if identity is None:
        return "## Origin\n\n`manifest.json` holds the checksum of every file."
    stages = {**identity["ancestors"], identity["stage"]: identity}
    params = {name: made["params"] for name, made in stages.items()}
    versions = ", ".join(plain(f"{name} {number}") for name, number in sorted(_versions(stages).items()))
    return (
        "## Origin\n\n`manifest.json` holds the checksum of every file, `identity.json` what each stage was made of."
        f"\n\nVersions: {versions}.\n\nParameters of each stage:\n\n"
        + fenced(json.dumps(params, sort_keys=True, indent=2), "json")
    )


def _versions(stages: Mapping[str, Any]) -> dict[str, str]:
    return {name: number for made in stages.values() for name, number in made["versions"].items()}


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def plain(text: str) -> str:
    """Text from data as Markdown that shows it, and does nothing else, in a paragraph or a table's cell.

    CommonMark takes a backslash before any ASCII punctuation. What cannot be printed becomes U+FFFD.
    """
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split())
    )
    return "".join(f"\\{letter}" if letter in string.punctuation else letter for letter in shown)


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any row of backticks in the text, which so cannot end it."""
    fence = "`" * max(3, 1 + max((len(found) for found in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
