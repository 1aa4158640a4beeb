"""DVC's cache, looked at before its content is used: DVC itself takes a damaged object as it is."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flows import dvc, supervisor
from stages.config.exits import Exit

_DIRECTORY = ".dir"


def bring_in(tree: Path, say: Callable[[str], None]) -> None:
    """Checks out what dvc.lock records, as far as the cache has it whole; the rest is stale, and made again.

    Damaged objects are removed from the cache first; what is missing is fetched where DVC has a default remote.
    """
    missing, has_remote = _look(tree, say)
    if missing and has_remote:
        line = dvc.command("--wait-for-lock", "fetch", "--quiet")
        if supervisor.run(line, cwd=tree, env=dvc.environment(), on_line=say).returncode != Exit.DONE:
            say("not all that is missing is in DVC's remote; the rest is made again")
    dvc.checkout(tree, say)


def _look(tree: Path, say: Callable[[str], None]) -> tuple[bool, bool]:
    """Whether something is missing (after the damaged has gone), and whether there is a remote to ask."""
    from dvc.repo import Repo  # Half a second.

    with Repo(str(tree)) as repo:
        outs = [out for out in repo.index.outs if out.use_cache and out.hash_info]
        paths = [_whole(Path(repo.cache.local.oid_to_path(oid)), oid, say) for oid in _oids(repo, outs, say)]
        return not all(paths), bool(repo.config.get("core", {}).get("remote"))


def _oids(repo: Any, outs: list[Any], say: Callable[[str], None]) -> Iterator[str]:
    """Of every output and, for folders, of the files inside."""
    for oid in dict.fromkeys(str(out.hash_info.value) for out in outs):
        yield oid
        path = Path(repo.cache.local.oid_to_path(oid))
        if oid.endswith(_DIRECTORY) and _whole(path, oid, say):
            yield from (str(entry["md5"]) for entry in json.loads(path.read_bytes()))


def _whole(path: Path, oid: str, say: Callable[[str], None]) -> bool:
    """False for an object that is missing; one that is not what its name says is removed, and missing then."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found == oid.removesuffix(_DIRECTORY):
        return True
    say(f"DVC's cache holds a damaged object, which is removed: {path}")
    path.unlink()
    return False
