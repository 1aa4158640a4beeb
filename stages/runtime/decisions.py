"""Sticky decisions: what a measuring stage chose, with its evidence. Kept until something is clearly better."""

import os
import platform
import sys
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from stages.runtime import state
from stages.runtime.files import canonical_json, read_json, sha256_bytes, write_json

MIN_GAIN = 0.10
"""A new choice replaces the kept one only for a gain above this share."""

CONFIRMATIONS = 2
"""So many times more is measured before a former choice is given up: a busy moment alone must not overturn it."""


def device_key() -> dict[str, Any]:
    """What a measured choice depends on: processor and cores, and the GPU where torch is loaded and sees one."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux; a container may have fewer cores than the machine.
    cores = len(affinity(0)) if affinity else os.cpu_count()
    key: dict[str, Any] = {"processor": _processor(), "cores": cores}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        key["gpu"] = torch.cuda.get_device_name()
    return key


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def processor_flags() -> set[str]:
    """The processor's feature flags (Linux); empty elsewhere."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def path_of(stage: str, key: Mapping[str, Any]) -> Path:
    """Where the decision for this key is kept."""
    return state.shared("decisions") / stage / f"{sha256_bytes(canonical_json(dict(key)).encode())}.json"


def recall(stage: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The kept `{"key", "choice", "evidence"}` for this key, or None."""
    path = path_of(stage, key)
    return dict(read_json(path)) if path.is_file() else None


def keep(stage: str, key: Mapping[str, Any], choice: Any, evidence: Mapping[str, Any]) -> None:
    """Stores the choice for this key."""
    write_json(path_of(stage, key), {"key": dict(key), "choice": choice, "evidence": dict(evidence)})


def stick(
    stage: str,
    key: Mapping[str, Any],
    cost: Mapping[str, float],
    values: Mapping[str, Any],
    again: Callable[[], Mapping[str, float]] | None = None,
) -> tuple[Any, bool]:
    """Chooses among measured candidates, and keeps a former choice unless another is more than 10% cheaper.

    `cost` maps candidate names to a measured cost (lower is better), `values` the same names to what is chosen. `again`
    measures once more: then the same other candidate must be so much cheaper every time. Returns the chosen value and
    whether it is the former one.
    """
    best = min(cost, key=lambda name: cost[name])
    former = recall(stage, key)
    own = next((name for name, value in values.items() if former is not None and value == former["choice"]), None)
    if own is not None and own in cost:
        more = (again() for _ in range(CONFIRMATIONS)) if again else ()
        if not all(_worse(one, own, best) for one in chain([cost], more)):  # Measures no more than it must.
            return values[own], True
    keep(stage, key, values[best], {"cost": dict(cost), "best": best})
    return values[best], False


def _worse(cost: Mapping[str, float], name: str, than: str) -> bool:
    return cost[than] <= cost[name] * (1.0 - MIN_GAIN)
