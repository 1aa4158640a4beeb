"""Whether dvc.lock records a stage as it stands now: the same dependencies and parameters, so DVC has its outputs."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.config.loading import PARAMS_FILE, ParamsError, read_yaml
from stages.runtime.files import files_below

LOCK_FILE = Path("dvc.lock")


def is_recorded(address: str, lock: Path = LOCK_FILE) -> bool:
    """True when the stage's entry in dvc.lock fits the present files and parameters.

    DVC runs such a stage only when it is forced to. False also when there is no readable dvc.lock.
    """
    try:
        entry = read_yaml(lock)["stages"][address]
        return _params_fit(entry.get("params", {})) and all(_fits(dep) for dep in entry.get("deps", []))
    except (ParamsError, KeyError, TypeError, OSError):
        return False


def _fits(dependency: Mapping[str, Any]) -> bool:
    path = Path(str(dependency["path"]))
    return path.exists() and dvc_md5(path) == dependency["md5"]


def _params_fit(recorded: Mapping[str, Mapping[str, Any]]) -> bool:
    for file, values in recorded.items():
        present = read_yaml(Path(file) if file != str(PARAMS_FILE) else PARAMS_FILE)
        if any(_at(present, dotted) != value for dotted, value in values.items()):
            return False
    return True


def _at(values: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        values = values[name]
    return values


def dvc_md5(path: Path) -> str:
    """DVC's digest: MD5 of a file; of a folder, MD5 of the JSON list of its files' MD5s, with `.dir` behind it."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    listed = [{"md5": dvc_md5(file), "relpath": file.relative_to(path).as_posix()} for file in files_below(path)]
    listed.sort(key=lambda row: row["relpath"])
    return hashlib.md5(json.dumps(listed, sort_keys=True).encode(), usedforsecurity=False).hexdigest() + ".dir"
