"""Measurements that vary from run to run (times, throughput): stamped with the digest of what they measured.

They are top-level `metrics:` and `plots:` of dvc.yaml, not outputs, so that dvc.lock stays stable.
"""

from pathlib import Path
from typing import Any

from stages.runtime.files import read_json, write_json


def write(path: Path, values: dict[str, Any], of: str) -> None:
    """Writes a measurement with the digest of the artifact that was measured."""
    write_json(path, {**values, "measured_digest": of})


def read(path: Path, of: str) -> dict[str, Any] | None:
    """The measurement, or None where there is none or it belongs to another artifact.

    The run cache may have brought other weights without running the stage that measures.
    """
    if not path.is_file():
        return None
    values: dict[str, Any] = read_json(path)
    return values if values.get("measured_digest") == of else None
