"""What dvc.yaml says of one stage: its dependencies and parameters, with `${item}` of foreach filled in."""

from pathlib import Path
from typing import Any

import yaml

DVC_FILE = Path("dvc.yaml")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Written in C where PyYAML has it: this file is read several times in every stage."""


def split_name(address: str) -> tuple[str, str]:
    """`diagnose@train` -> ("diagnose", "train"); `train` -> ("train", "")."""
    stage, _, instance = address.partition("@")
    return stage, instance


def entry(address: str, path: Path = DVC_FILE) -> dict[str, Any]:
    """The stage's entry in dvc.yaml; of a foreach stage its `do` part."""
    stage, _ = split_name(address)
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)["stages"][stage]  # noqa: S506
    return dict(found.get("do", found))


def dependencies(address: str, path: Path = DVC_FILE) -> list[str]:
    """The stage's `deps`, with `${item}` filled in."""
    _, instance = split_name(address)
    return [str(dep).replace("${item}", instance) for dep in entry(address, path).get("deps", [])]


def code_dependencies(address: str, path: Path = DVC_FILE) -> list[str]:
    """Those of the dependencies that are code."""
    return [dep for dep in dependencies(address, path) if dep.startswith("stages/")]


def artifact_dependencies(address: str, path: Path = DVC_FILE) -> list[str]:
    """Those of the dependencies that other stages left."""
    return [dep for dep in dependencies(address, path) if dep.startswith("artifacts/")]
