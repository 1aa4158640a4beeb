"""Values as short text, for people."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_ORDER = (
    "prepare_data", "benchmark_data", "find_batch_size", "train", "diagnose@train", "distill", "diagnose@distill",
    "prune", "diagnose@prune", "export_onnx", "quantize", "profile_model", "bundle",
)  # fmt: skip


def in_order(stages: Mapping[str, Any]) -> dict[str, Any]:
    """Stages by the order of the pipeline; unknown ones last, by name."""
    known = {name: at for at, name in enumerate(_ORDER)}
    return {name: stages[name] for name in sorted(stages, key=lambda name: (known.get(name, len(known)), name))}


def counts_in_words(counts: Any) -> str:
    """`{"copies": 2, "conflicting": 0}` -> `2 copies`; `none` where all are 0."""
    if not isinstance(counts, Mapping):
        return short(counts)
    found = [f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if number]
    return ", ".join(found) or "none"


def short(value: Any) -> str:
    """A value as JSON would write it, texts without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted keys and plain values; an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
