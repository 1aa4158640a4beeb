"""The pipeline as a Prefect flow: one task for each DVC stage, in the order of DVC's graph.

DVC owns what is stale and what is cached; Prefect's own result caching is off. The flow ends in the same dvc.lock as
a plain `dvc repro`.
"""

import logging
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.states import Completed, Failed

from flows import dvc, last, workspace
from flows.ends import Ended, Refused
from stages.config.exits import Exit

_STATE_NAMES = {
    Exit.GATE: "Gate failed",
    Exit.PARAMS: "Bad parameters",
    Exit.DATA: "Bad data",
    Exit.DISK: "Disk fault",
    Exit.STOPPED: "Stopped",
}
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


def _has_traceback(record: logging.LogRecord) -> bool:
    """False for the line that Prefect logs beside a returned failed state: an empty traceback of a plain failure."""
    return record.exc_info != (None, None, None)


logging.getLogger("prefect.task_runs").addFilter(_has_traceback)


@task(name="stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
def run_stage(stage: str, *, force: bool) -> State[Ended]:
    """Runs one stage: the very command that a person types. A failed gate is a failed task with the gate's sentence."""
    tree = Path.cwd()
    logger = get_run_logger()

    def log(line: str) -> None:
        if line.strip() and not line.strip().startswith(_DVC_HINTS) and not line.endswith(_DVC_SKIPS):
            logger.info(line)

    ended = dvc.repro(tree, stage, anew=force, on_line=log, say=logger.warning)
    if ended.code != Exit.DONE:
        return failed(ended)
    said = last.read(tree).get(stage)
    if said is None:
        return Completed(name="Cached", message="DVC found nothing to run", data=ended)
    return Completed(message=str(said.get("sentence", "")), data=ended)


@task(name="cached stage", task_run_name="{stage}", cache_policy=NO_CACHE, persist_result=False, log_prints=False)
def show_cached(stage: str) -> State[None]:  # noqa: ARG001 -- names the task run
    """Shows a stage that DVC calls up to date."""
    return Completed(name="Cached", message="up to date")


@flow(name="train-to-deploy", persist_result=False, log_prints=False)
def train_to_deploy(stage: str | None = None, force: bool = False) -> State[Ended]:
    """From raw data to a bundle; with `stage`, up to that stage. `force` runs also what is up to date."""
    tree = Path.cwd()
    logger = get_run_logger()
    try:
        with workspace.only_run(tree, logger.warning):
            return _run_stages(dvc.plan(tree, logger.warning), tree, stage, force)
    except Refused as refused:
        return failed(Ended(refused.code, refused.sentence))


def _run_stages(plan: dvc.Plan, tree: Path, stage: str | None, force: bool) -> State[Ended]:
    steps = plan.steps(stage)
    candidates = set(steps if force else plan.candidates(stage))
    last.clear(tree)
    for name in steps:
        if name not in candidates:
            show_cached(name, return_state=True)
            continue
        # Called, not submitted: a cancellation is raised in this thread, and must reach the supervisor.
        state = run_stage(name, force=force, return_state=True)
        if not state.is_completed():
            return failed(_ended(state, name))
    return Completed(message=f"{len(steps)} stages are up to date", data=Ended(Exit.DONE))


def failed(ended: Ended) -> State[Ended]:
    """A failed state whose message is the stage's own sentence; the exit code gives it its name."""
    name = _STATE_NAMES.get(Exit(ended.code) if ended.code in set(Exit) else Exit.BUG, "Failed")
    return Failed(name=name, message=ended.sentence, data=ended)


def _ended(state: State[Any], stage: str) -> Ended:
    """What a task's state holds; a task that raised (a bug, a lost server) holds an exception."""
    found = state.result(raise_on_failure=False)
    return found if isinstance(found, Ended) else Ended(Exit.BUG, state.message or "the task crashed", stage)


def run_here(stage: str | None, force: bool) -> Ended:
    """Runs the flow in this process and in this working tree."""
    try:
        state = train_to_deploy(stage, force, return_state=True)
    finally:
        # The server may stop right after: what it is still to be told goes first.
        for worker in (APILogWorker, EventsWorker):
            worker.drain_all(timeout=_DELIVERY_LIMIT_S)
    return _ended(state, stage or "flow")
