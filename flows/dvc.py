"""The only caller of DVC: the graph and what is stale from its own API, runs through its own command."""

import difflib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flows import dvc_faults, last, supervisor, workspace
from flows.ends import Ended, Refused
from stages.config.editing import replace_text
from stages.config.exits import Exit

BUSY_LIMIT_S = 3600.0
_BUSY_RETRY_S = 5.0
_BUSY_SAY_EVERY_S = 60.0

Say = Callable[[str], None]
T = TypeVar("T")


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of DVC and the stages: this interpreter's `python` and `dvc`, a plain shell, no telemetry."""
    env = dict(os.environ if base is None else base)
    scripts = str(Path(sys.executable).parent)
    env["PATH"] = os.pathsep.join([scripts, *filter(None, [env.get("PATH")])])
    # DVC runs a stage's command under $SHELL, whose start-up files could change what `python` means.
    return {**env, "SHELL": "/bin/sh", "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}


def command(*arguments: str) -> list[str]:
    """A DVC command line of this interpreter's environment."""
    script = Path(sys.executable).parent / "dvc"
    return [*([str(script)] if script.is_file() else [sys.executable, "-m", "dvc"]), *arguments]


@dataclass(frozen=True)
class Plan:
    """DVC's graph and what is stale, asked once."""

    order: tuple[str, ...]
    """All stages, in the order in which DVC runs them."""

    needs: dict[str, frozenset[str]]
    """The stages (and .dvc files) that each one directly depends on."""

    changed: dict[str, str]
    """What DVC calls changed, with its reason."""

    def targets(self, stage: str | None) -> list[str]:
        """The stages that a name stands for: itself, or all of a foreach group. Raises `Refused` for no such name."""
        if stage is None:
            return list(self.order)
        found = [name for name in self.order if name == stage or name.startswith(f"{stage}@")]
        if not found:
            near = difflib.get_close_matches(stage, self.order, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise Refused(Exit.PARAMS, f"no stage is named {stage!r}; {hint}stages: {', '.join(self.order)}")
        return found

    def closure(self, stage: str) -> set[str]:
        """A stage and all that it depends on."""
        found: set[str] = set()
        left = [stage]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left.extend(self.needs[name])
        return found

    def steps(self, stage: str | None = None) -> list[str]:
        """The stages that must be up to date for a target, in order; without a target all."""
        within = set().union(*(self.closure(name) for name in self.targets(stage)))
        return [name for name in self.order if name in within]

    def candidates(self, stage: str | None = None) -> list[str]:
        """Of those the stale ones, and what descends from them: DVC may still find that it need not run."""
        return [name for name in self.steps(stage) if self.closure(name) & self.changed.keys()]


def plan(tree: Path, say: Say, limit_s: float = BUSY_LIMIT_S) -> Plan:
    """Asks DVC. Waits, visibly, for another DVC process that holds its locks. Raises `Refused`."""
    _without_git(tree)

    def attempt() -> Plan:
        try:
            return _plan(tree)
        except Exception as error:
            raise dvc_faults.from_exception(error) from error

    return _patiently(attempt, say, limit_s)


def _plan(tree: Path) -> Plan:
    from dvc.repo import Repo, lock_repo  # Half a second; not for `shipway --help`.
    from dvc.repo.reproduce import get_active_graph, plan_repro

    with Repo(str(tree)) as repo, lock_repo(repo):
        graph = get_active_graph(repo.index.graph)
        stages = plan_repro(graph, [stage for stage in repo.index.stages if stage.path_in_repo == "dvc.yaml"])
        needs = {stage.addressing: frozenset(dep.addressing for dep in graph.successors(stage)) for stage in stages}
        changed = {}
        for stage in stages:
            reasons = stage.status(check_updates=False).get(stage.addressing)
            if reasons:
                changed[stage.addressing] = _reason(reasons)
        runs = tuple(stage.addressing for stage in stages if stage.cmd)
    return Plan(order=runs, needs=needs, changed=changed)


def _reason(entries: Iterable[Any]) -> str:
    """`[{"changed deps": {"a.py": "modified"}}, "changed command"]` -> "a.py modified, changed command"."""
    said: list[str] = []
    for entry in entries:
        groups = entry.values() if isinstance(entry, dict) else [entry]
        for group in groups:
            said += [f"{path} {what}" for path, what in _flat(group)] if isinstance(group, dict) else [str(group)]
    return ", ".join(said)


def _flat(group: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for path, what in group.items():
        pairs += _flat(what) if isinstance(what, dict) else [(str(path), str(what))]
    return pairs


def _without_git(tree: Path) -> None:
    """Lets DVC work in a downloaded archive: outside git it refuses until told so, in a file that git ignores."""
    if any((folder / ".git").exists() for folder in (tree, *tree.parents)) or not (tree / ".dvc").is_dir():
        return
    local = tree / ".dvc" / "config.local"
    if local.is_file() and "no_scm" in local.read_text(encoding="utf-8"):
        return
    from dvc.config import Config

    with Config(dvc_dir=str(tree / ".dvc"), validate=False).edit("local") as settings:
        settings.setdefault("core", {})["no_scm"] = True


def repro(
    tree: Path,
    stage: str | None = None,
    *,
    force: bool = False,
    anew: bool = False,
    on_line: Say | None = None,
    say: Say,
    limit_s: float = BUSY_LIMIT_S,
) -> Ended:
    """`dvc --wait-for-lock repro [stage]`, under the supervisor.

    `force` runs the stage and all before it, `anew` the stage alone of what is up to date. Output goes to `on_line`,
    or else to the terminal. A stage that another process is running is waited for, `limit_s` at most.
    Never `--single-item`: it would score what a failed stage left half-done.
    """
    options = [*(["--force"] if force else []), *(["--no-run-cache"] if anew else []), *([stage] if stage else [])]
    line = command("--wait-for-lock", "repro", *options)

    def attempt() -> Ended:
        last.clear_failures(tree)
        report = supervisor.run(line, cwd=tree, env=environment(), on_line=on_line, hold=workspace.held())
        return dvc_faults.ended(report, last.read(tree), stage)

    try:
        with to_be_run_again(tree, stage) if anew and stage else nullcontext():
            return _patiently(attempt, say, limit_s)
    except Refused as refused:
        return Ended(int(refused.code), refused.sentence, stage)


def _patiently(attempt: Callable[[], T], say: Say, limit_s: float) -> T:
    """Tries again while another DVC process holds what is needed, and says so. Raises `Refused` at the limit."""
    began = time.monotonic()
    said = float("-inf")
    while True:
        try:
            return attempt()
        except dvc_faults.Busy as busy:
            waited = time.monotonic() - began
            if waited >= limit_s:
                raise Refused(Exit.STOPPED, f"{busy.sentence}; still so after {waited:.0f} s; try later") from None
            if time.monotonic() - said >= _BUSY_SAY_EVERY_S:
                said = time.monotonic()
                say(f"{busy.sentence}; waiting for it to end (Ctrl-C to leave)")
            time.sleep(min(_BUSY_RETRY_S, limit_s))


@contextmanager
def to_be_run_again(tree: Path, stage: str) -> Iterator[None]:
    """Inside, DVC takes one stage for stale, though nothing has changed; `--force` would run all before it, too.

    Its entry in dvc.lock keeps its place and loses its command; a run that fails leaves dvc.lock as it was.
    """
    lock = tree / "dvc.lock"
    if not lock.is_file():
        yield
        return
    before = lock.read_text(encoding="utf-8")
    marked = _marked(before, stage)
    if marked != before:
        replace_text(lock, marked)
    try:
        yield
    finally:
        if lock.read_text(encoding="utf-8") == marked != before:
            replace_text(lock, before)


def _marked(text: str, stage: str) -> str:
    from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update

    document = parse_yaml_for_update(text, "dvc.lock")
    entry = document.get("stages", {}).get(stage)
    if entry is None:
        return text
    entry["cmd"] = "to be run again"
    return str(dumps_yaml(document))


def share_cache(home: Path, clone: Path) -> None:
    """Lets a clone use the cache, and the remotes by the places that they stand for, of the repository it is from."""
    from dvc.config import Config
    from dvc.repo import Repo

    local = home / ".dvc" / "config.local"
    if local.is_file():
        shutil.copyfile(local, clone / ".dvc" / "config.local")
    with Repo(str(home)) as repo:
        cache, remotes = repo.cache.local_cache_dir, repo.config.get("remote", {})
    with Config(dvc_dir=str(clone / ".dvc"), validate=False).edit("local") as settings:
        settings.setdefault("cache", {})["dir"] = cache
        for name, remote in remotes.items():
            if "://" not in str(remote.get("url", "://")):  # A folder: relative to where it is written down.
                settings.setdefault("remote", {}).setdefault(name, {})["url"] = str(remote["url"])


def checkout(tree: Path, on_line: Say) -> None:
    """Brings in from the cache what dvc.lock records, as far as it is there; the rest is stale, and made again."""
    line = command("--wait-for-lock", "checkout", "--quiet", "--allow-missing")
    supervisor.run(line, cwd=tree, env=environment(), on_line=on_line)


def update(tree: Path, on_line: Say) -> None:
    """`dvc update` of all data that is tracked at its source (`dvc import`, `dvc import-url`). Raises `Refused`."""
    from dvc.repo import Repo

    with Repo(str(tree)) as repo:
        imported = sorted(stage.relpath for stage in repo.index.stages if stage.is_import)
    if not imported:
        return
    line = command("--wait-for-lock", "update", "--", *(os.path.relpath(path, tree) for path in imported))
    report = supervisor.run(line, cwd=tree, env=environment(), on_line=on_line)
    found = dvc_faults.ended(report, {}, None)
    if found.code != Exit.DONE:
        raise Refused(Exit(found.code), f"the data cannot be brought up to date: {found.sentence}")


def transfer(tree: Path, name: str, arguments: Sequence[str]) -> int:
    """`dvc push` or `dvc pull`, shown on the terminal; the exit code. Raises `Refused` for what DVC refuses."""
    report = supervisor.run(command("--wait-for-lock", name, *arguments), cwd=tree, env=environment())
    found = dvc_faults.ended(report, {}, None)
    if found.code != Exit.DONE:
        raise Refused(Exit(found.code), found.sentence)
    return int(Exit.DONE)
