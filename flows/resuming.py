"""`shipway resume`: the last failed run goes on, as by Retry in the UI."""

from collections.abc import Callable
from pathlib import Path

from flows import last, server, serving
from flows.ends import Refused
from stages.config.exits import Exit


def resume(tree: Path, say: Callable[[str], None]) -> bool:
    """Schedules the last failed served run again; False where nothing is served and the run here is to go on.

    Raises `Refused` when there is nothing to resume.
    """
    address = server.given() or serving.served_at(tree)
    if address is None:
        if not last.unfinished(tree):
            raise Refused(
                Exit.PARAMS, "nothing to resume: no run failed in this folder, and it is not served (`make serve`)"
            )
        return False
    with server.client_of(tree, address):
        _retry_last(address, say)
    return True


def _retry_last(address: server.Address, say: Callable[[str], None]) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.states import AwaitingRetry

    ended = {"type": {"any_": [StateType.FAILED, StateType.CRASHED, StateType.CANCELLED]}}
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": ["train-to-deploy"]}}),
            flow_run_filter=FlowRunFilter.model_validate({"state": ended, "deployment_id": {"is_null_": False}}),
            sort=FlowRunSort.END_TIME_DESC,
            limit=1,
        )
        if not runs:
            raise Refused(Exit.PARAMS, "nothing to resume: no served run has failed")
        (run,) = runs
        client.set_flow_run_state(run.id, AwaitingRetry(message="by `shipway resume`"), force=True)
    state = run.state.name if run.state else "ended"
    say(f"run {run.name} ({state}) goes on: {address.base}/runs/flow-run/{run.id}")
