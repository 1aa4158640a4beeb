"""Prefect's automations that `make serve` sets up: runs that died silently, and notifications through a webhook.

For work pools `python -m flows.automations` does it, on the server of PREFECT_API_URL.
"""

import os
from datetime import timedelta
from typing import cast
from uuid import UUID

from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from pydantic import SecretStr

from flows.serving import WEBHOOK_VARIABLE
from flows.states import NAMES

HEARTBEAT_S = 30
_SILENT_S = 100
_BLOCK = "shipway-webhook"
_TELLS = "Shipway: failures and questions go to the webhook"
_RUNS = ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"})
_ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Suspended", "AwaitingRetry", "TimedOut")
_PAYLOAD = (
    '{"run": {{ flow_run.name | tojson }}, "flow": {{ flow.name | tojson }}, '
    '"state": {{ flow_run.state.name | tojson }}, '
    '"message": {{ (flow_run.state.message or "") | tojson }}, "id": "{{ flow_run.id }}"}'
)


def set_up() -> None:
    """Makes them, or brings those of a former start up to date. Without `SHIPWAY_WEBHOOK` nothing is sent anywhere."""
    _write(_zombies())
    url = os.environ.get(WEBHOOK_VARIABLE)
    former = _find(_TELLS)
    if url:
        _write(_notifications(url))
    elif former is not None:
        former.delete()


def _zombies() -> Automation:
    """A run that sent heartbeats and then neither another one nor its end: its process is gone."""
    ends = {f"prefect.flow-run.{name}" for name in (*_ENDS, *NAMES)}
    return Automation(
        name="Shipway: a run that died is marked as crashed",
        description="So that nothing stays `Running` without a process; Retry goes on from the last checkpoint.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match=_RUNS,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=_SILENT_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no sign of life for {_SILENT_S} s; Retry goes on from the last checkpoint",
            )
        ],
    )


def _notifications(url: str) -> Automation:
    """Failures, failed gates and questions for approval, to the person's own webhook."""
    block = Webhook(url=SecretStr(url))
    block_id = cast(UUID, block.save(_BLOCK, overwrite=True))
    return Automation(
        name=_TELLS,
        description=f"To the address in {WEBHOOK_VARIABLE}.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.*"},
            match=ResourceSpecification(
                {"prefect.resource.id": "prefect.flow-run.*", "prefect.state-type": ["FAILED", "CRASHED", "PAUSED"]}
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[CallWebhook(block_document_id=block_id, payload=_PAYLOAD)],
    )


def _write(wanted: Automation) -> None:
    found = _find(wanted.name)
    if found is None:
        wanted.create()
        return
    wanted.id = found.id
    wanted.update()


def _find(name: str) -> Automation | None:
    try:
        return cast(Automation, Automation.read(name=name))
    except ValueError:  # Prefect's word for: there is none of this name.
        return None


if __name__ == "__main__":  # For work pools (prefect.yaml), where nothing of ours stays and serves.
    set_up()
