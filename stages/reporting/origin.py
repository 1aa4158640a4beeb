"""Which commit an artifact comes from, where its run's record is not at hand: found in the history of dvc.lock."""

import configparser
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.checkpoints.dvclock import LOCK_FILE, dvc_md5
from stages.reporting import git
from stages.runtime import record

_MAX_FOLDERS_UP = 3
"""An output folder lies at most so far above a file in it (artifacts/train/model/weights.safetensors)."""


@dataclass(frozen=True)
class Origin:
    """Where something was found."""

    commit: str | None
    how: str
    """How it was found, or why it was not: a sentence's end for a person."""


def find(path: Path, identity: Mapping[str, Any] | None) -> Origin:
    """Looks for the artifact's own hash, then for it inside a recorded folder, then for its parameters."""
    if git.head() is None:
        why = record.refusal() or "there is no git repository (or no commit) here"
        return Origin(None, f"{why}, so dvc.lock has no history")
    hashes = list(_hashes(path))
    for found in hashes:
        commit = git.first_with(found, LOCK_FILE)
        if commit:
            return Origin(commit, f"the first commit whose {LOCK_FILE} records these bytes")
    versions = list(_versions())
    for commit, lock in versions:
        if any(hashes[0] in _listing(name) for name in _folders(lock)):
            return Origin(commit, f"the first commit whose {LOCK_FILE} records a folder with this file in it")
    for commit, lock in versions:
        if identity and _same_params(lock, identity):
            how = f"the first commit whose {LOCK_FILE} has the same parameters; the bytes themselves are not recorded"
            return Origin(commit, how)
    if LOCK_FILE.is_file() and any(found in LOCK_FILE.read_text(encoding="utf-8") for found in hashes):
        return Origin(None, f"{LOCK_FILE} records it, but no commit has that {LOCK_FILE}: commit it")
    return Origin(None, f"no commit's {LOCK_FILE} records it")


def _hashes(path: Path) -> Iterator[str]:
    """DVC's hash of the path, then of the folders above it that an output may be."""
    yield dvc_md5(path)
    folder = path.resolve().parent
    for _ in range(_MAX_FOLDERS_UP):
        if folder.name == "artifacts" or not (folder / "identity.json").is_file():
            return
        yield dvc_md5(folder)
        folder = folder.parent


def _versions() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every committed dvc.lock, oldest first, as (commit, its stages)."""
    for commit in git.commits_of(LOCK_FILE):
        try:
            loaded = YAML(typ="safe").load(git.at(commit, LOCK_FILE) or "")
        except YAMLError:  # A dvc.lock with a merge conflict in it.
            continue
        if isinstance(loaded, dict) and isinstance(loaded.get("stages"), dict):
            yield commit, loaded["stages"]


def _folders(lock: Mapping[str, Any]) -> Iterator[str]:
    for entry in lock.values():
        for out in entry.get("outs", []):
            if str(out.get("md5", "")).endswith(".dir"):
                yield str(out["md5"])


def _listing(name: str) -> set[str]:
    """The hashes of the files in a folder, from DVC's cache; empty where it is not in the cache."""
    path = _cache() / "files" / "md5" / name[:2] / name[2:]
    try:
        return {str(row["md5"]) for row in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _cache() -> Path:
    """DVC's cache folder: `cache.dir` of .dvc/config.local or .dvc/config (relative to .dvc), else .dvc/cache."""
    for name in ("config.local", "config"):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(Path(".dvc") / name, encoding="utf-8")
        except configparser.Error:
            continue
        found = parser.get("cache", "dir", fallback=None)
        if found:
            return Path(".dvc") / found
    return Path(".dvc/cache")


def _same_params(lock: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    """True when dvc.lock's parameters of the stage and of all its ancestors agree with the identity's.

    dvc.lock holds them as written in params.yaml, the identity with defaults filled in.
    """
    stages = {identity["stage"]: identity, **identity.get("ancestors", {})}
    if not set(stages) <= set(lock):
        return False
    return all(_within(_recorded(lock[stage]), known["params"]) for stage, known in stages.items())


def _recorded(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(entry.get("params", {}).get("params.yaml", {}))


def _within(part: Any, whole: Any) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and _within(value, whole[name]) for name, value in part.items())
    return bool(part == whole)
