"""The store of a training's checkpoints: `.shipway/checkpoints/<stage>/<fingerprint>/<code and libraries>/`.

The last three are kept, and the best of each, twice.
"""

import fcntl
import io
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stages.checkpoints import files, lineage
from stages.checkpoints.files import Saved
from stages.runtime import state, stopping
from stages.runtime.exits import DiskFault, Stopped
from stages.runtime.files import canonical_json, sha256_bytes, write_bytes, write_json
from stages.runtime.progress import say

KEPT = 3
"""Checkpoints that are kept, beside the best."""

_POLL_S = 0.2


class Store:
    """Checkpoints of one training. Use it inside `locked()`."""

    def __init__(
        self,
        stage: str,
        fingerprint: str,
        code: str,
        *,
        about: Mapping[str, Any] | None = None,
        libraries: Mapping[str, str] | None = None,
        across_code: bool = False,
        reuse_finished: bool = True,
    ) -> None:
        """`about` (params, data hash, seed, threads) goes into every checkpoint's metadata.

        `libraries`: versions of what decides the numbers beside the code (None: those that are installed); others count
        as other code. `across_code`: an unfinished run of other code is gone on with. `reuse_finished`: a finished
        run's result is taken; otherwise it is trained again.
        """
        self.stage = stage
        self.fingerprint = fingerprint
        self.code = code
        self.about = dict(about or {})
        self.across_code = across_code
        self.reuse_finished = reuse_finished
        self.shared = state.shared("checkpoints") / stage / fingerprint
        self.libraries = dict(libraries or lineage.libraries())
        made_with = canonical_json({"code": code, "libraries": self.libraries})
        self.folder = self.shared / sha256_bytes(made_with.encode())[:16]

    def of_rank(self, rank: int, size: int) -> "Store":
        """The store of one of several processes that train together: every rank saves the same steps, in its own."""
        return Store(
            self.stage,
            sha256_bytes(f"{self.fingerprint} rank {rank} of {size}".encode()),
            self.code,
            about={**self.about, "ranks": size},
            libraries=self.libraries,
            across_code=self.across_code,
            reuse_finished=self.reuse_finished,
        )

    @property
    def history(self) -> Path:
        """Where the history of the unfinished run grows."""
        return self.folder / files.HISTORY

    @property
    def finished(self) -> bool:
        """True when the newest good checkpoint of this code and these libraries ended its run."""
        found = files.newest(self.folder)
        return found is not None and found.meta["status"] != "running"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time, across clones that share the state; waits for the other, which may then be reused."""
        self.shared.mkdir(parents=True, exist_ok=True)
        with (self.shared / "lock").open("a") as file:
            told = False
            while not _try_lock(file.fileno()):
                if not told:
                    say(f"{self.stage}: the same training runs in another process; waiting for it")
                    told = True
                if stopping.requested():
                    raise Stopped("stopped while waiting for the same training in another process; run again to go on")
                time.sleep(_POLL_S)
            yield

    def latest(self, fits: Callable[[Saved], bool] = lambda _: True) -> Saved | None:
        """The newest whole checkpoint to go on from, or None to start. Damaged ones are refused with a warning.

        `fits`: whether what lies beside the checkpoints is as this one left it; else an older one may do.
        """
        files.remove_leftovers(self.folder)
        whole = False
        for found in self.whole():
            if fits(found):
                return found
            whole = True
        if whole:
            return None
        other = self._other_code()
        if other is None:
            return None
        if not self.across_code:
            say(
                f"{self.stage}: starts again: {self._change(other)} since the checkpoints in {other.path.parent}, "
                "which are kept (resume.across_code: true goes on from them)"
            )
            return None
        say(f"{self.stage}: goes on from {other.path}, although {self._change(other)}; the lineage says so")
        self._adopt(other.path.parent)
        return next(filter(fits, self.whole()), None)

    def save(
        self,
        step: int,
        payload: Mapping[str, Any],
        meta: Mapping[str, Any],
        best_step: int | None,
        anchor_step: int | None = None,
        due: bool = True,
    ) -> Path:
        """Writes a checkpoint durably, then drops those that are not kept. Raises `OSError` on a full disk.

        `best_step` names the checkpoint (of this or an earlier step) that holds the best weights so far, `anchor_step`
        the one to which a training rolls back; both are kept. One that is not `due` is kept until the next one.
        """
        full = {**self.about, **meta, "stage": self.stage, "fingerprint": self.fingerprint, "code": self.code}
        full |= {"versions": self.libraries, "step": step, "best_step": best_step, "anchor_step": anchor_step}
        buffer = io.BytesIO()
        torch.save({**payload, "meta": full}, buffer)
        content = buffer.getvalue()
        path = files.path_of(self.folder, step)
        self._remove(step)  # Its seal and its second copy, where it is taken again.
        write_bytes(path, content)
        seal = {
            "sha256": sha256_bytes(content),
            "best_step": best_step,
            "anchor_step": anchor_step,
            "status": meta["status"],
            "due": due,
        }
        write_json(path.with_suffix(".json"), seal)
        for other in files.named_by(self.folder, step):
            files.keep_copy(self.folder, other)
        self._drop(step)
        return path

    def load(self, step: int) -> Saved:
        """The checkpoint of this step. Raises `DiskFault` when it is missing or damaged."""
        found = files.read_whole(files.path_of(self.folder, step))
        if found is None:
            raise DiskFault(f"checkpoint of step {step} in {self.folder} is damaged; run again: an older one is taken")
        return found

    def whole(self) -> Iterator[Saved]:
        """All checkpoints of this code that can be gone on from, newest first."""
        return files.all_whole(self.folder)

    def drop_after(self, step: int) -> None:
        """Removes later checkpoints: the run went back behind them."""
        for later in files.steps(self.folder):
            if later > step:
                self._remove(later)

    def clear(self) -> None:
        """Removes this code's checkpoints and history."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _drop(self, newest: int) -> None:
        seals = {step: files.seal_of(self.folder, step) for step in files.steps(self.folder) if step <= newest}
        last = [step for step, seal in seals.items() if seal.get("due", True)][:KEPT]
        kept = {newest, *last}
        kept |= {other for step in set(kept) for other in files.named_by(self.folder, step)}
        for step in files.steps(self.folder):
            if step not in kept:  # Also later ones, which were refused.
                self._remove(step)

    def _remove(self, step: int) -> None:
        path = files.path_of(self.folder, step)
        for one in (self.folder / files.COPIES / path.name, path):
            for suffix in (".json", ".pt"):
                one.with_suffix(suffix).unlink(missing_ok=True)

    def _other_code(self) -> Saved | None:
        folders = [path for path in self.shared.iterdir() if path.is_dir() and path != self.folder]
        folders = [path for path in folders if not path.name.startswith(".")]  # A copy that was cut off.
        found = [saved for folder in folders if (saved := files.newest(folder)) is not None]
        unfinished = [saved for saved in found if saved.meta["status"] == "running"]
        return max(unfinished, key=lambda saved: saved.path.stat().st_mtime, default=None)

    def _change(self, other: Saved) -> str:
        """What is not as it was when the other checkpoint was made."""
        if other.meta["code"] != self.code:
            return "the code changed"
        former = other.meta["versions"]
        changed = [
            f"{name} {former.get(name)} -> {now}" for name, now in self.libraries.items() if former.get(name) != now
        ]
        return f"the libraries changed ({', '.join(changed)})"

    def _adopt(self, folder: Path) -> None:
        temporary = self.folder.with_name(f".{self.folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(folder, temporary)
        shutil.rmtree(self.folder, ignore_errors=True)
        temporary.replace(self.folder)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
