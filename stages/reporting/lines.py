"""Values as short text, for people."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


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
