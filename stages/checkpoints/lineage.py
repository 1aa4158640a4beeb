"""Who made which steps of a training, and with what: a segment per process that worked on it."""

from collections.abc import Mapping, Sequence
from typing import Any

from stages.runtime import identity, record

Segment = dict[str, Any]
"""from_step, to_step, code (hash), commit, dirty, branch, versions, host, started."""


def libraries() -> dict[str, str]:
    """What decides a training's numbers beside its code: Python (minor version), numpy, torch."""
    return _deciding(identity.versions(("torch",)))


def _deciding(versions: Mapping[str, str]) -> dict[str, str]:
    return {**versions, "python": ".".join(versions["python"].split(".")[:2])}


def begin(code: str, from_step: int) -> Segment:
    """A new segment, for what this process will add after `from_step` optimizer steps."""
    git = record.git_state()
    return {
        "from_step": from_step,
        "to_step": from_step,
        "code": code,
        "commit": git["commit"],
        "branch": git["branch"],
        "dirty": git["dirty"],
        "versions": identity.versions(("torch",)),
        "host": record.host(),
        "started": record.now(),
    }


def is_mixed(lineage: Sequence[Segment]) -> bool:
    """True when different code, or the same with other libraries, made different steps (`resume.across_code`)."""
    worked = [segment for segment in lineage if segment["to_step"] > segment["from_step"]]
    return len({(one["code"], *sorted(_deciding(one["versions"]).items())) for one in worked}) > 1
