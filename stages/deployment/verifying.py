"""Verifies a bundle without running code from it: every checksum, no file too many, the stored predictions."""

import os
import re
import subprocess
import sys
from pathlib import Path

from stages.deployment import predict
from stages.deployment.bundling import MANIFEST
from stages.runtime.exits import BadData

_CACHE = re.compile(r"__pycache__(/predict\.[\w.-]+\.pyc)?")
_TIME_LIMIT_S = 300


def verify(folder: Path) -> str:
    """Checks a bundle; a line that says what agrees. Raises `BadData` with one line for the first fault.

    Uses Shipway's own code: a bundle from elsewhere is not trusted to check itself.
    """
    if not folder.is_dir():
        raise BadData(f"{folder} must be a bundle's folder; it is {'a file' if folder.exists() else 'missing'}")
    try:
        manifest = predict.read_manifest(folder)
        _check_extra(folder, set(manifest["files"]) | {MANIFEST})
        bundle = predict.Bundle(folder)
        agreed = predict.check_predictions(bundle)
    except predict.RefusedError as error:
        raise BadData(str(error)) from None
    return f"{folder} is whole: {len(manifest['files'])} checksums and {agreed} stored predictions agree"


def _check_extra(folder: Path, known: set[str]) -> None:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise BadData(f"{path} is a symbolic link; a bundle holds plain files only")
        if _CACHE.fullmatch(name):
            continue  # Python's own, left by an import of predict.py.
        if path.is_file() and name not in known:
            raise BadData(f"{path} is not in the manifest; remove it, or get the bundle again")
        if not path.is_file() and not path.is_dir():
            raise BadData(f"{path} is neither file nor folder; a bundle holds plain files only")


def check_in_clean_process(folder: Path) -> None:
    """Runs the bundle's own `predict.py --check` as a user would, isolated from this environment. Raises `BadData`."""
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(folder / "predict.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=False,
        env={name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT") if name in os.environ},
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BadData(f"the bundle does not work in a clean process: {said[-1] if said else done.returncode}")
