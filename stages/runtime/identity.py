"""An artifact's identity: only what its DVC dependencies determine, so that equal inputs give equal bytes.

Commit, dirty tree, host and time belong to the run (see `record`), never to the artifact.
"""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from stages.config.base import StageParams
from stages.runtime import graph
from stages.runtime.files import (
    IDENTITY_FILE,
    canonical_json,
    digest,
    files_below,
    read_json,
    sha256_bytes,
    sha256_file,
)

SCHEMA = 1


def code_hash(address: str) -> str:
    """Hash over names and contents of the stage's code dependencies as dvc.yaml lists them."""
    lines = [
        f"{file.as_posix()}\0{sha256_file(file)}\n"
        for dependency in sorted(graph.code_dependencies(address))
        for file in files_below(Path(dependency))
    ]
    return sha256_bytes("".join(lines).encode())


def versions(libraries: Sequence[str]) -> dict[str, str]:
    """Versions of Python, numpy and the named distributions."""
    return {"python": python_version()} | {name: version(name) for name in sorted({"numpy", *libraries})}


def build(address: str, params: StageParams, libraries: Sequence[str]) -> dict[str, Any]:
    """The identity of what the stage is about to make, with its ancestors' (flat, by stage).

    Keys: schema, stage, params (by dotted key of params.yaml), code, data (content hash of the prepared data or None),
    versions, parents (path -> digest), ancestors (stage -> {params, code, versions, parents}).
    """
    parents: dict[str, str] = {}
    ancestors: dict[str, Any] = {}
    data: str | None = None
    for dependency in graph.artifact_dependencies(address):
        path = Path(dependency)
        parents[dependency] = digest(path)
        inherited = path / IDENTITY_FILE
        if inherited.is_file():
            parent = read_json(inherited)
            ancestors |= parent["ancestors"]
            ancestors[parent["stage"]] = {name: parent[name] for name in ("params", "code", "versions", "parents")}
            data = parent["data"] or data
        info = path / "info.json"
        if info.is_file():
            data = read_json(info).get("hash", data)
    return {
        "schema": SCHEMA,
        "stage": address,
        "params": params.by_key(),
        "code": code_hash(address),
        "data": data,
        "versions": versions(libraries),
        "parents": parents,
        "ancestors": ancestors,
    }


def embedded(identity: dict[str, Any]) -> str:
    """The one metadata value (canonical JSON) that is put into files under the key `shipway`."""
    return canonical_json(identity)
