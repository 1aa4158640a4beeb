"""What a file says of itself, joined with the record of the run that made it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.deployment import predict
from stages.reporting import git, origin
from stages.runtime import embedding, record
from stages.runtime.exits import BadData
from stages.runtime.files import IDENTITY_FILE, digest, read_json, sha256_file

MANIFEST = "manifest.json"
RECORD_SUFFIX = ".record.json"
"""A released folder `<digest>` has its record beside it: `<digest>.record.json`."""

Description = dict[str, Any]


def describe(path: Path) -> Description:
    """All that is known of a checkpoint, a .safetensors or .onnx file, a bundle, or another artifact's folder.

    Keys: path, kind, digest, identity (None where the file carries none), made (commit, dirty, branch, time, host,
    how), notes, and for a checkpoint `checkpoint`. Raises `BadData` for what is missing, damaged or of unknown kind.
    """
    kind = kind_of(path)
    if kind == "checkpoint":
        return _checkpoint(path)
    identity = _identity(path, kind)
    if identity is not None:
        _check_identity(path, identity)
    notes = _damage(path) if kind == "bundle" else []
    notes += [] if identity else ["it carries no identity: Shipway did not make it, or it was written anew since"]
    found = digest(path)
    made, more = _made(path, found, identity)
    shown = {"path": path.as_posix(), "kind": kind, "digest": found, "identity": identity, "made": made}
    return {**shown, "notes": [*notes, *more]}


def _damage(bundle: Path) -> list[str]:
    """What is wrong with a bundle's files; its provenance can be told all the same."""
    try:
        predict.check_files(bundle, predict.read_manifest(bundle))
    except predict.RefusedError as error:
        return [f"it is damaged: {error}"]
    return []


def kind_of(path: Path) -> str:
    """`bundle`, `artifact`, `checkpoint`, `safetensors` or `onnx`. Raises `BadData`."""
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return "bundle"
        if (path / IDENTITY_FILE).is_file():
            return "artifact"
        raise BadData(f"{path} is no artifact: it has neither {MANIFEST} nor {IDENTITY_FILE}; give a bundle's folder")
    if not path.is_file():
        raise BadData(f"{path} is missing; give a file or folder that a run left")
    kinds = {".pt": "checkpoint", ".safetensors": "safetensors", ".onnx": "onnx"}
    if path.suffix not in kinds:
        allowed = "a checkpoint (.pt), a .safetensors file, an .onnx file, or a bundle's folder"
        raise BadData(f"{path} is of unknown kind; required is {allowed}")
    return kinds[path.suffix]


def _identity(path: Path, kind: str) -> dict[str, Any] | None:
    if path.is_file() and path.stat().st_size == 0:
        raise BadData(f"{path} is empty, so no {kind} file; give a file that a run left")
    try:
        if kind in ("safetensors", "onnx"):
            found = embedding.read(path)
            if found is None and kind == "onnx":
                _check_graph(path)
            return found
        file = path / IDENTITY_FILE
        return dict(read_json(file)) if file.is_file() else embedding.read(path / "model.onnx")
    except OSError:
        raise
    except Exception:  # struct, json and protobuf each have their own for a damaged file.
        what = {"safetensors": "safetensors file", "onnx": "ONNX model"}.get(kind, kind)
        raise BadData(f"{path} is no {what}, or it is damaged; give a file that a run left") from None


def _check_graph(path: Path) -> None:
    """Protobuf reads many a file of another kind as a model without anything in it. Raises `ValueError`."""
    import onnx  # Loaded already, by the reading of the identity.

    if not onnx.load(path, load_external_data=False).HasField("graph"):
        raise ValueError(f"{path} holds no graph")


def _check_identity(path: Path, identity: Mapping[str, Any]) -> None:
    """Another program may use the same key. Raises `BadData` when the identity is not of Shipway's form."""
    ancestors = identity.get("ancestors")
    whole = (
        all(isinstance(identity.get(name), str) for name in ("stage", "code"))
        and all(isinstance(identity.get(name), dict) for name in ("params", "versions", "parents"))
        and isinstance(ancestors, dict)
        and all(isinstance(one, dict) and isinstance(one.get("params"), dict) for one in ancestors.values())
    )
    if not whole:
        required = "stage, code, params, versions, parents and ancestors"
        raise BadData(f"{path} carries an identity that is not of Shipway's form: it must hold {required}")


def _made(path: Path, found: str, identity: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """The commit, time and host of the run that made these bytes, and what a person should know of them."""
    recorded = find_record(path, found)
    if recorded is None:
        found_at = origin.find(path, identity)
        notes = ["the record of its run is not at hand (.shipway/runs)"]
        return {"commit": found_at.commit, "dirty": None, "how": found_at.how}, notes
    state = dict(recorded["git"])
    made = {
        **state,
        "dirty": state.get("dirty") or (None if state["commit"] is None else False),
        "time": recorded["time"],
        "host": recorded["host"]["name"],
        "how": "the record of its run" if recorded["digest"] == found else "the record of the bundle that it lies in",
        "lineage": recorded.get("result") or None,
    }
    notes = []
    if path.is_dir() and recorded["digest"] != found:
        notes.append(f"the folder was changed since its release: its digest was {recorded['digest']}")
    if state["commit"] is None:
        notes.append(f"no commit: {state.get('why') or 'made outside git'}")
    elif state.get("branch") is None:
        notes.append("made on a detached HEAD: no branch was checked out")
    if state.get("dirty"):
        notes.append(f"the tree had uncommitted changes (hash {state['dirty'][:12]}): the commit alone is not enough")
    if _mixed(recorded.get("result")):
        notes.append(
            "mixed: its training went on over a change of code or libraries (--json: made.lineage has who did what)"
        )
    return made, notes


def _mixed(result: Any) -> bool:
    """Whether a training in a record says so: a stage may have several."""
    if isinstance(result, dict):
        return result.get("mixed") is True or any(map(_mixed, result.values()))
    return isinstance(result, list) and any(map(_mixed, result))


def find_record(path: Path, found: str) -> dict[str, Any] | None:
    """The run's record: from the state folder, or from beside a released bundle (also for a file of that bundle)."""
    recorded = record.find(found)
    if recorded is not None:
        return recorded
    whole = path.resolve()
    folder = whole if whole.is_dir() else whole.parent
    beside = folder.parent / (folder.name + RECORD_SUFFIX)
    if not beside.is_file() or not (whole.is_dir() or _belongs(whole, folder)):
        return None
    try:
        values = read_json(beside)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not values.keys() >= {"digest", "git", "time", "host"}:
        raise BadData(f"{beside} is damaged: no record of a run; remove it to look without it")
    return dict(values)


def _belongs(file: Path, folder: Path) -> bool:
    """Whether the folder's manifest names these very bytes: a file that was put there later has another origin."""
    try:
        entry = read_json(folder / MANIFEST)["files"][file.name]
        return bool(entry["sha256"] == sha256_file(file))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _checkpoint(path: Path) -> Description:
    from stages.checkpoints.files import describe as read_checkpoint  # Loads torch: seconds.

    meta = read_checkpoint(path)
    _check_form(path, meta)
    last = (meta.get("lineage") or [{}])[-1]
    made = {name: last.get(name) for name in ("commit", "branch")}
    made["dirty"] = last.get("dirty") or (None if made["commit"] is None else False)
    made |= {"time": last.get("started"), "host": (last.get("host") or {}).get("name"), "how": "its own lineage"}
    notes = []
    if meta.get("intact") is False:
        notes.append("its checksum does not hold: the file was truncated or altered")
    elif meta.get("intact") is None:
        notes.append("its seal (.json) is missing: whether it was written to its end is not known")
    if made["commit"] is None:
        notes.append("no commit: made outside git")
    if made["dirty"]:
        notes.append("the tree had uncommitted changes: the commit alone does not give it")
    params = {**meta.get("params", {}), **{name: meta[name] for name in ("seed", "threads") if name in meta}}
    identity = {"stage": meta["stage"], "params": params, "code": meta["code"], "data": meta.get("data")}
    identity |= {"versions": last.get("versions", {}), "parents": meta.get("inputs") or {}, "ancestors": {}}
    shown = {"path": path.as_posix(), "kind": "checkpoint", "digest": digest(path), "identity": identity, "made": made}
    return {**shown, "checkpoint": meta, "notes": notes}


def _check_form(path: Path, meta: Mapping[str, Any]) -> None:
    """Any file of torch may have a `meta`. Raises `BadData` when it is not that of Shipway's checkpoints."""
    lineage = meta.get("lineage") or []
    whole = (
        all(isinstance(meta.get(name), str) for name in ("stage", "code"))
        and all(isinstance(meta.get(name) or {}, dict) for name in ("params", "inputs"))
        and isinstance(lineage, list)
        and all(isinstance(one, dict) and {"from_step", "to_step", "code"} <= one.keys() for one in lineage)
        and all(isinstance(one.get(name) or {}, dict) for one in lineage for name in ("host", "versions"))
    )
    if not whole:
        raise BadData(f"{path} is no checkpoint of Shipway: its `meta` must hold stage, code and lineage")


def checked_out(made: Mapping[str, Any]) -> str:
    """How what is checked out now stands to the commit that made it."""
    now = git.head()
    if now is None:
        return record.refusal() or "there is no git repository here"
    if made.get("commit") is None:
        return "its commit is not known"
    return "its commit is checked out" if now == made["commit"] else f"another commit is checked out: {now[:12]}"
