"""What `make serve` serves: runs on demand, the nightly run, and promotion."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import httpx
from prefect import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import DeploymentStatus, StateType
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound, PrefectException, TerminationSignal
from prefect.runner import Runner
from prefect.schedules import Cron
from prefect.states import Crashed
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import ParameterSchema

from flows import automations
from flows.ends import Refused
from flows.promote import promote
from flows.train_to_deploy import train_to_deploy
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, load

_OF = "repository "
"""A tag of the deployments: whose they are."""

RUNS_AT_ONCE = 32
"""Processes: one run works, others wait their turn in one and say so; an approval needs one at any time."""

FLOWS = (train_to_deploy.name, promote.name)


def deployments(tree: Path) -> list[RunnerDeployment]:
    """The three deployments, as params.yaml describes them. Raises `ParamsError`."""
    nightly = load(tree / PARAMS_FILE)["nightly"]
    by_module = EntrypointType.MODULE_PATH
    made = (
        train_to_deploy.to_deployment(
            "on-demand", description="From raw data to a bundle, in a clone of its own.", entrypoint_type=by_module
        ),
        train_to_deploy.to_deployment(
            "nightly",
            schedule=Cron(nightly["cron"], timezone=nightly["timezone"], active=nightly["enabled"]),
            parameters={"update_data": nightly["update_data"], "propose": True},
            description="Takes new data, trains, compares with production, asks for approval.",
            entrypoint_type=by_module,
        ),
        promote.to_deployment(
            "release", description="Puts one bundle into production, after approval.", entrypoint_type=by_module
        ),
    )
    return [_closed(_tagged(cast(RunnerDeployment, one), tree)) for one in made]


def _tagged(deployment: RunnerDeployment, tree: Path) -> RunnerDeployment:
    deployment.tags = [*deployment.tags, _tag(tree)]
    return deployment


class _Closed(ParameterSchema):
    """So that Prefect's server refuses a parameter that the flow does not have, instead of crashing the run."""

    additionalProperties: bool  # JSON schema's own name  # noqa: N815


def _closed(deployment: RunnerDeployment) -> RunnerDeployment:
    schema = deployment._parameter_openapi_schema.model_dump()
    deployment._parameter_openapi_schema = _Closed(**schema, additionalProperties=False)
    return deployment


def serve_all(tree: Path, *, own_server: bool, say: Callable[[str], None]) -> None:
    """Serves until it is stopped. On a server of our own, runs that died with a former one are marked as crashed."""
    os.environ["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = str(automations.HEARTBEAT_S)
    if own_server:
        _end_lost_runs(say)
    wanted = deployments(tree)
    if not own_server:
        _require_free(tree, wanted)
    automations.set_up()
    runner = Runner(pause_on_shutdown=False, limit=RUNS_AT_ONCE)
    for one in wanted:
        runner.add_deployment(one)
    say(f"serving {', '.join(f'{one.flow_name}/{one.name}' for one in wanted)} (Ctrl-C stops)")
    try:
        with suppress(KeyboardInterrupt, TerminationSignal):
            asyncio.run(runner.start())
    finally:
        _let_go(tree, wanted)


def _require_free(tree: Path, wanted: list[RunnerDeployment]) -> None:
    """Raises `Refused` where another repository is served on this server: its runs would be made by either of them."""
    with get_client(sync_client=True) as client:
        for one in wanted:
            try:
                found = client.read_deployment_by_name(f"{one.flow_name}/{one.name}")
            except ObjectNotFound:
                continue
            others = [tag for tag in found.tags if tag.startswith(_OF) and tag != _tag(tree)]
            if others and found.status == DeploymentStatus.READY:  # Until it was not asked for runs for a minute.
                raise Refused(
                    Exit.PARAMS,
                    f"this Prefect server serves another repository, {others[0].removeprefix(_OF)} (or did until a "
                    "minute ago); one server takes one: stop that one, or unset PREFECT_API_URL to use one of its own",
                )


def _let_go(tree: Path, served: list[RunnerDeployment]) -> None:
    """Takes our name off: another repository may be served there at once."""
    with suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        for one in served:
            found = client.read_deployment_by_name(f"{one.flow_name}/{one.name}")
            kept = [tag for tag in found.tags if tag != _tag(tree)]
            client.update_deployment(found.id, DeploymentUpdate(tags=kept))


def _tag(tree: Path) -> str:
    return f"{_OF}{socket.gethostname()}:{tree.resolve()}"


def _end_lost_runs(say: Callable[[str], None]) -> None:
    """Nothing can run on a server that has just started: what it calls running died with the former one."""
    alive = {"type": {"any_": [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING]}}
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": list(FLOWS)}}),
            flow_run_filter=FlowRunFilter.model_validate({"state": alive}),
        ):
            why = "its process ended with the server that it ran on; Retry goes on from the last checkpoint"
            client.set_flow_run_state(run.id, Crashed(message=why), force=True)
            say(f"run {run.name}: {why}")
