"""Who made which steps of a training: a segment per process that worked on it."""

from collections.abc import Sequence
from typing import Any

from stages.runtime import identity, record

Segment = dict[str, Any]
"""from_step, to_step, code (hash), commit, dirty, branch, versions, host, started."""


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
    """True when different code made different steps (`resume.across_code: true`)."""
    return len({segment["code"] for segment in lineage if segment["to_step"] > segment["from_step"]}) > 1
