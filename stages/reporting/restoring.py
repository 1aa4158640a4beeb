"""The parameters that made a file: its own and its ancestors', by section or dotted key of params.yaml."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.config.base import Section
from stages.reporting.provenance import describe
from stages.runtime.exits import BadData

Values = dict[str, Any]


def restore(path: Path) -> dict[str, Any]:
    """`{"sections": {section or dotted key: value}, "commit", "dirty", "how", "notes"}` of a file and its ancestors.

    Raises `BadData` when it carries no parameters, or when two of its ancestors were made with different values of
    the same key: neither wins.
    """
    found = describe(path)
    identity = found["identity"]
    if identity is None:
        raise BadData(f"{path} carries no identity of Shipway, so its parameters are not known")
    stages = {
        **{name: one["params"] for name, one in identity["ancestors"].items()},
        identity["stage"]: identity["params"],
    }
    clashes = conflicts(stages)
    if clashes:
        shown = "; ".join(f"{key}: " + ", ".join(f"{v!r} in {s}" for s, v in of.items()) for key, of in clashes.items())
        raise BadData(f"{path} was made from artifacts with different parameters: {shown}; restore one of those files")
    sections = merge(stages)
    if found["kind"] == "checkpoint":  # It holds only what makes the run: other keys of a section stay as they are.
        sections = dict(_leaves(sections))
    made = found["made"]
    kept = {name: made.get(name) for name in ("commit", "dirty", "how")}
    return {"sections": sections, **kept, "notes": found["notes"]}


def merge(stages: Mapping[str, Mapping[str, Any]]) -> Values:
    """One mapping of all stages' sections; a dotted key that lies inside a section which is there is left out."""
    whole: Values = {}
    for params in stages.values():
        whole |= params
    return {
        key: value for key, value in sorted(whole.items()) if key.partition(".")[0] == key or not _inside(key, whole)
    }


def _inside(key: str, whole: Mapping[str, Any]) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:end]) in whole for end in range(1, len(parts)))


def conflicts(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Dotted keys to which stages give different values -> {stage: value}."""
    seen: dict[str, dict[str, Any]] = {}
    for stage, params in stages.items():
        for key, value in _leaves(params):
            seen.setdefault(key, {})[stage] = value
    return {key: of for key, of in seen.items() if any(value != next(iter(of.values())) for value in of.values())}


def _leaves(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys down to what the schemas call a value: kwargs stay whole."""
    from stages.config.pipeline import Pipeline

    for key, value in params.items():
        yield from _below(key, value, _schema(Pipeline, key))


def _below(key: str, value: Any, schema: type[Section] | None) -> Iterator[tuple[str, Any]]:
    if schema is None or not isinstance(value, dict):
        yield key, value
        return
    for name, child in value.items():
        yield from _below(f"{key}.{name}", child, _schema(schema, name))


def _schema(schema: type[Section], dotted: str) -> type[Section] | None:
    """The section's class at a dotted key; None for a plain value or a key that no longer exists."""
    here: Any = schema
    for name in dotted.split("."):
        field = here.model_fields.get(name) if isinstance(here, type) and issubclass(here, Section) else None
        if field is None:
            return None
        here = field.annotation
    return here if isinstance(here, type) and issubclass(here, Section) else None
