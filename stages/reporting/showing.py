"""What `shipway show` prints."""

from collections.abc import Iterator, Mapping
from typing import Any

from stages.reporting.lines import flat, in_order, short
from stages.reporting.provenance import Description, checked_out


def lines(found: Description) -> Iterator[str]:
    """The description of a file for a person to read."""
    identity, made = found["identity"], found["made"]
    yield f"{found['path']}: {found['kind']}"
    yield from _facts({"digest": found["digest"]})
    if identity:
        yield from _facts({"stage": identity["stage"], "data": identity.get("data"), "code": identity["code"]})
        versions = ", ".join(f"{name} {number}" for name, number in identity.get("versions", {}).items())
        yield from _facts({"versions": versions})
    yield from _facts({"commit": _commit(made), "here": checked_out(made)})
    yield from _facts({name: made.get(name) for name in ("branch", "time", "host")})
    if "checkpoint" in found:
        yield from _checkpoint(found["checkpoint"])
    for note in found["notes"]:
        yield f"  note: {note}"
    if identity:
        yield from _params(identity)
        yield from _parents(identity)


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if value not in (None, ""):
            yield f"  {name:<10} {short(value)}"


def _commit(made: Mapping[str, Any]) -> str:
    commit = made.get("commit") or "not known"
    dirty = " with uncommitted changes" if made.get("dirty") else ""
    return f"{commit}{dirty} ({made.get('how')})"


def _checkpoint(meta: Mapping[str, Any]) -> Iterator[str]:
    hidden = {"params", "lineage", "versions", "stage", "code", "data", "inputs", "seed", "threads"}
    yield "  training:"
    shown = flat({name: value for name, value in sorted(meta.items()) if name not in hidden})
    yield from (f"    {name}: {short(value)}" for name, value in shown if not name.endswith("confusion"))
    yield "  lineage:"
    for segment in meta.get("lineage", []):
        dirty = ", uncommitted changes" if segment.get("dirty") else ""
        commit = str(segment.get("commit") or "no commit")[:12]
        yield f"    steps {segment['from_step']} to {segment['to_step']}: {commit}{dirty}, code {segment['code'][:12]}"


def _params(identity: Mapping[str, Any]) -> Iterator[str]:
    stages = in_order({**identity.get("ancestors", {}), identity["stage"]: identity})
    for stage, one in stages.items():
        yield f"  parameters of {stage}:"
        yield from (f"    {key}: {short(value)}" for key, value in flat(one["params"]))


def _parents(identity: Mapping[str, Any]) -> Iterator[str]:
    if identity.get("parents"):
        yield "  made from:"
        yield from (f"    {path}: {digest}" for path, digest in identity["parents"].items())
