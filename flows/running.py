"""`shipway run`: looks first, edits params.yaml, lets DVC run what is stale, shows the report."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from flows import dvc, last, server, supervisor, workspace
from flows.ends import Ended, Refused, meaning
from flows.looking import look
from stages.config.editing import edit, parse_assignments, replace_text
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, ParamsError, load

BASELINE = {"distill.enabled": False, "prune.enabled": False, "quantize.enabled": False}


@dataclass(frozen=True)
class Request:
    """What `shipway run` was asked for."""

    stage: str | None = None
    assignments: Sequence[str] = ()
    force: bool = False
    baseline: bool = False
    prefect: bool = False


def say(line: str) -> None:
    """A line for the person who watches."""
    typer.echo(line)


def run(request: Request) -> int:
    """The exit code of the stage that ended the run, or 0. Raises `Refused`."""
    tree = workspace.root()
    workspace.check_writable(tree)
    _look_at_git(tree)
    if request.prefect:
        server.require_given()
    with workspace.only_run(tree, say):
        before = _edit(request, tree)
        plan = dvc.plan(tree, say)
        steps = plan.steps(request.stage)
        candidates = plan.candidates(request.stage)
        if candidates or request.force:
            due = steps if request.force else candidates
            looked = look(tree, due)
            if looked.code != Exit.DONE:
                failed = _failed(looked)
                _take_back(before, tree)
                return failed
            last.begin(tree)
            ended = _through_prefect(request, tree) if request.prefect else _directly(request, tree)
            if ended.code != Exit.DONE:
                return _failed(ended)
            last.end(tree)
        else:
            say(_nothing_to_do(plan, steps, request.stage))
        complete = request.stage is None or not dvc.plan(tree, say).candidates()
        return _report(tree) if complete else Exit.DONE


def _look_at_git(tree: Path) -> None:
    """A folder of another user's (a container's volume): git refuses it, and no record could name a commit."""
    if (tree / ".git").exists() and supervisor.call(["git", "rev-parse", "--git-dir"], cwd=tree, capture=True)[0]:
        say("warning: git refuses to work here (see above): what this run makes will name no commit")


def _edit(request: Request, tree: Path) -> bytes:
    """Writes the wanted changes into params.yaml, if they are valid. Returns what it held before."""
    before = (tree / PARAMS_FILE).read_bytes()
    try:
        changes = parse_assignments(request.assignments) | (BASELINE if request.baseline else {})
        if not changes:
            load()
            return before
        if request.stage is not None:
            dvc.plan(tree, say).targets(request.stage)
        changed = edit(changes)
    except ParamsError as error:
        raise Refused(Exit.PARAMS, str(error)) from None
    if request.baseline:
        say("baseline: distill, prune and quantize are off in params.yaml; `enabled: true` switches each on again")
    for dotted, (old, new) in changed.items():
        say(f"params.yaml: {dotted}: {old} -> {new}")
    return before


def _take_back(before: bytes, tree: Path) -> None:
    if (tree / PARAMS_FILE).read_bytes() != before:
        replace_text(tree / PARAMS_FILE, before.decode("utf-8"))
        say("params.yaml: put back as it was")


def _directly(request: Request, tree: Path) -> Ended:
    return dvc.repro(tree, request.stage, force=request.force, say=say)


def _through_prefect(request: Request, tree: Path) -> Ended:
    with server.api(tree, say):
        from flows import train_to_deploy  # Prefect takes seconds to import, and reads its environment then.

        return train_to_deploy.run_here(request.stage, request.force)


def _nothing_to_do(plan: dvc.Plan, steps: Sequence[str], stage: str | None) -> str:
    if stage is None:
        return f"nothing to do: all {len(steps)} stages are up to date"
    before = len(steps) - len(plan.targets(stage))
    rest = f" and the {before} before it" if before > 1 else " and the one before it" if before else ""
    return f"nothing to do: {stage}{rest} are up to date" if before else f"nothing to do: {stage} is up to date"


def _failed(ended: Ended) -> int:
    where = f"{ended.stage}: " if ended.stage else ""
    for line in (ended.sentence or "no reason was given").splitlines():
        typer.echo(f"shipway: {where}{meaning(ended.code)} (exit {int(ended.code)}): {line}", err=True)
    return int(ended.code)


def _report(tree: Path) -> int:
    """Writes artifacts/report.html and prints the table, in a process of its own."""
    code, _ = supervisor.call([sys.executable, "-m", "stages.reporting", "report"], cwd=tree)
    return code
