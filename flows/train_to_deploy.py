"""The pipeline as a Prefect flow: one task for each DVC stage, in the order of DVC's graph.

DVC owns what is stale and what is cached; Prefect's own result caching is off. The flow ends in the same dvc.lock as
a plain `dvc repro`. Served (flows/deployments.py), each run works in a clone of its own; `shipway run --prefect` runs
it in the person's working tree.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from prefect import Task, flow, get_client, get_run_logger, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.events.worker import EventsWorker
from prefect.exceptions import TerminationSignal
from prefect.logging.handlers import APILogWorker
from prefect.states import Completed, Running

from flows import cache, clones, dvc, last, nightly, parent, production, showing, states, workspace
from flows.ends import Ended, Refused, RunFailed, StopAsked
from flows.form import Overrides, StageName
from flows.looking import look
from flows.states import failed
from stages.config.editing import changes_in, edit
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, ParamsError, load

_DVC_HINTS = (
    "To track the changes with git",
    "git add ",
    "To enable auto staging",
    "dvc config core.autostage",
    "Use `dvc push`",
)
_DVC_SKIPS = "didn't change, skipping"
"""Said of each stage before the one that is run: their own tasks have shown it already."""
_DELIVERY_LIMIT_S = 15.0
_WORTH_ANOTHER_TRY = (Exit.STOPPED, Exit.DISK)
"""Lost processes and stops, which go on from the checkpoint, and a disk that may have room by then."""
_RETRY_DELAYS_S = [10.0, 60.0]
_STOPPED = "stopped on request; run again to go on"


def worth_another_try(_task: Task[Any, Any], _run: TaskRun, state: State[Any]) -> bool:
    """The stage's own exit code decides: 75 and 74 yes; a gate, bad parameters or data, a bug no."""
    if not isinstance(state.data, RunFailed) or state.data.ended.sentence == _STOPPED:
        return False
    return state.data.ended.code in _WORTH_ANOTHER_TRY


@dataclass(frozen=True)
class Wanted:
    """What a run was asked for, apart from where it works."""

    stage: str | None
    force: bool


@task(
    name="stage",
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    log_prints=False,
    retries=len(_RETRY_DELAYS_S),
    retry_delay_seconds=_RETRY_DELAYS_S,
    retry_condition_fn=worth_another_try,
)
def run_stage(stage: str, tree: str, *, force: bool) -> State[Ended]:
    """Runs one stage: the very command that a person types. A failed gate is a failed task with the gate's sentence."""
    logger, root, progress = get_run_logger(), Path(tree), showing.Progress(stage)

    def log(line: str) -> None:
        if line.strip() and not line.strip().startswith(_DVC_HINTS) and not line.endswith(_DVC_SKIPS):
            logger.info(line)
            progress.line(line)

    try:
        ended = dvc.repro(root, stage, anew=force, on_line=log, say=logger.warning)
    except (StopAsked, TerminationSignal):
        if runtime.deployment.id is not None:  # Prefect's own business: the UI's Cancel, or the end of `make serve`.
            raise
        return failed(Ended(Exit.STOPPED, _STOPPED, stage))
    said = last.read(root).get(stage)
    if ended.code in (Exit.DONE, Exit.GATE) and said is not None:
        showing.show(root, stage, Ended(ended.code, str(said.get("sentence", ""))), logger.warning)
    if ended.code != Exit.DONE:
        return failed(ended)
    if said is None:
        return Completed(name="Cached", message="DVC found nothing to run", data=ended)
    return Completed(message=str(said.get("sentence", "")), data=ended)


@task(name="cached stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
def show_cached(stage: str) -> State[None]:  # noqa: ARG001 -- names the task run
    """Shows a stage that DVC calls up to date."""
    return Completed(name="Cached", message="up to date")


@flow(name="train-to-deploy", persist_result=False, log_prints=False)
def train_to_deploy(
    stage: Annotated[str, StageName] | None = None,
    force: bool = False,
    revision: str | None = None,
    overrides: Annotated[dict[str, Any], Overrides] = {},  # noqa: B006 -- the form's default; only read
    update_data: bool = False,
    propose: bool = False,
) -> State[Ended]:
    """From raw data to a bundle.

    Args:
        stage: Run up to this stage; left out: all of them.
        force: Run also what is up to date.
        revision: Commit, branch or tag to run; left out: the last commit of the served repository.
        overrides: Changes to params.yaml, kept on the run's branch; what is left out stays as it is.
        update_data: First bring data that is tracked at its source (dvc import) up to date.
        propose: Afterwards compare the bundle with the one in production, and ask for approval when it is better.

    """
    home, logger, wanted = Path.cwd(), get_run_logger(), Wanted(stage, force)
    try:
        if runtime.deployment.id is None:
            with workspace.only_run(home, logger.warning):
                return _run_stages(dvc.plan(home, logger.warning), home, wanted)
        parent.end_with_parent()
        with _turn(home):
            return _served(home, wanted, revision, overrides, nightly.Nightly(update_data, propose))
    except (Refused, ParamsError) as error:
        code = error.code if isinstance(error, Refused) else Exit.PARAMS
        return failed(Ended(code, str(error)))


@contextmanager
def _turn(home: Path) -> Iterator[None]:
    """One run at a time in a served repository; while another one works, the run's state says so."""
    logger, run_id, waited = get_run_logger(), UUID(runtime.flow_run.id), False

    def wait(line: str) -> None:
        nonlocal waited
        waited = True
        logger.warning(line)
        _set_running(run_id, "Waiting", line)

    with workspace.only_run(home, wait, limit_s=float("inf")):
        if waited:
            _set_running(run_id, "Running", "the other run has ended")
        yield


def _set_running(run_id: UUID, name: str, message: str) -> None:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_id, Running(name=name, message=message), force=True)


def _served(
    home: Path, wanted: Wanted, revision: str | None, overrides: dict[str, Any], afterwards: nightly.Nightly
) -> State[Ended]:
    """In a clone of its own, which is kept until the run has succeeded; the result goes to the run's branch."""
    logger, name = get_run_logger(), str(runtime.flow_run.name)
    clone = clones.for_run(home, str(runtime.flow_run.id), name, revision, logger.warning)
    os.chdir(clone.root)  # DVC names stages relative to the current folder. The process is this run's own.
    workspace.check_writable(clone.root)
    changed = edit(changes_in(overrides), clone.root / PARAMS_FILE)
    for dotted, (old, new) in changed.items():
        logger.info("params.yaml: %s: %s -> %s", dotted, old, new)
    if changed:
        clone.commit(f"{name}: {', '.join(f'{dotted} {old} -> {new}' for dotted, (old, new) in changed.items())}")
    production.place(home, load(clone.root / PARAMS_FILE))  # Refused now, not when all stages are done.
    cache.bring_in(clone.root, logger.info)
    if afterwards.update_data:
        dvc.update(clone.root, logger.info)
    plan = dvc.plan(clone.root, logger.warning)
    due = plan.steps(wanted.stage) if wanted.force else plan.candidates(wanted.stage)
    looked = look(clone.root, due)
    if looked.code != Exit.DONE:
        return failed(looked)
    state = _run_stages(plan, clone.root, wanted)
    if not state.is_completed():
        logger.warning("its clone is kept for a retry: %s", clone.root)
        return state
    return nightly.conclude(clone, name, afterwards, whole=wanted.stage is None)


def _run_stages(plan: dvc.Plan, tree: Path, wanted: Wanted) -> State[Ended]:
    steps = plan.steps(wanted.stage)
    candidates = set(steps if wanted.force else plan.candidates(wanted.stage))
    last.clear(tree)
    for name in steps:
        if name not in candidates:
            show_cached(name, return_state=True)
            continue
        # Called, not submitted: a cancellation is raised in this thread, and must reach the supervisor.
        state = run_stage(name, str(tree), force=wanted.force, return_state=True)
        if not state.is_completed():
            return failed(states.ended(state, name))
    what = "all stages are" if len(steps) > 1 else f"{steps[0]} is"
    return Completed(message=f"{what} up to date", data=Ended(Exit.DONE))


def run_here(stage: str | None, force: bool) -> Ended:
    """Runs the flow in this process and in this working tree."""
    try:
        state = train_to_deploy(stage, force, return_state=True)
    finally:
        # The server may stop right after: what it is still to be told goes first.
        for worker in (APILogWorker, EventsWorker):
            worker.drain_all(timeout=_DELIVERY_LIMIT_S)
    return states.ended(state, stage or "flow")
