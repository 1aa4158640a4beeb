"""What a served run does once its stages are done: keeps the result, and proposes a better bundle for production."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect import get_client, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from flows import candidates, comparison, dvc, last, production
from flows.candidates import Candidate
from flows.clones import Clone
from flows.ends import Ended
from flows.states import done
from stages.config.loading import PARAMS_FILE, load

PROMOTION = "promote/release"
_NEVER_ANSWERED = "The flow was paused and never resumed."
"""Prefect's own words for a question whose time is over."""


@dataclass(frozen=True)
class Nightly:
    """What a run does beside its stages."""

    update_data: bool
    propose: bool


def conclude(clone: Clone, name: str, asked: Nightly, *, whole: bool) -> State[Ended]:
    """Publishes the run's branch, writes its bundle down as a candidate, proposes it where that is wanted.

    "No change" when no setting was changed, no stage ran, the bundle is known already, and nothing is to be asked.
    `whole`: the run was for all stages. Raises `Refused`.
    """
    params, ran = load(clone.root / PARAMS_FILE), sorted(last.read(clone.root))
    made = _compared(clone, params, whole=whole)
    digest = made[comparison.CANDIDATE]["digest"] if made else ""
    candidate = candidates.known(clone.home).get(digest)
    changed = clone.has_commits or bool(ran) or (made is not None and candidate is None)
    said = []
    if changed:
        clone.commit(f"{name}: {', '.join(ran) or 'restored from the cache'}")
        commit = clone.publish()
        said.append(f"the result is on branch {clone.branch}; `shipway take {clone.branch}` brings it into your tree")
        get_run_logger().info(said[0])
        if made:
            when, before = datetime.now(UTC).isoformat(timespec="microseconds"), candidate.asked if candidate else {}
            candidate = Candidate(digest, commit, clone.branch, name, when, made, before)
            candidates.keep(clone.home, candidate)
    if made and candidate:
        said += _propose(clone.home, candidate, made, params["promote"], wanted=asked.propose, tell=changed)
    clone.remove()
    if not said:
        return done("No change", "nothing changed: every stage is up to date")
    return done("Completed", "; ".join(said))


def _compared(clone: Clone, params: dict[str, Any], *, whole: bool) -> comparison.Rows | None:
    """The bundle and the one in production on this run's test split; None when the run has no bundle of its own.

    After a run for one stage, the bundle may be what an older commit made of other data: it may know that test split.
    """
    if not (clone.root / comparison.BUNDLE / "manifest.json").is_file():
        return None
    if not whole and (stale := dvc.plan(clone.root, get_run_logger().warning).changed):
        get_run_logger().info("the bundle is no candidate: not up to date: %s", ", ".join(stale))
        return None
    place = production.place(clone.home, params)
    now = production.current(place)
    return comparison.compare(clone.root, place / now if now else None)


def _propose(
    home: Path, candidate: Candidate, rows: comparison.Rows, settings: dict[str, Any], *, wanted: bool, tell: bool
) -> list[str]:
    """Asks for approval of a candidate that is better; what it said, if anything.

    Over each bundle in production that is done once, and again where nobody has answered in time.
    """
    better, sentence = comparison.verdict(rows, settings["metric"], settings["min_gain"])
    now = rows.get(comparison.PRODUCTION, {}).get("digest", "nothing")
    before = candidate.asked.get(now)
    asks = wanted and better and (before is None or _timed_out(before))
    if asks or tell:
        text = f"{comparison.table(rows)}\n\n{sentence}"
        create_markdown_artifact(text, key="comparison", description="the bundle beside production")
    if not asks:
        return [sentence] if tell else []
    run = cast(
        FlowRun,
        run_deployment(
            PROMOTION,
            parameters={"digest": candidate.digest},
            timeout=0,
            as_subflow=False,
            # Also of several runs that find the same at once, one asks.
            idempotency_key=f"{candidate.digest}-over-{now}{f'-after-{before}' if before else ''}",
            flow_run_name=f"approve {candidate.digest[:12]}: {sentence}",
        ),
    )
    candidates.keep(home, replace(candidate, asked={**candidate.asked, now: str(run.id)}))
    return [sentence, f"asked for approval in the run {run.name!r}"]


def _timed_out(run_id: str) -> bool:
    """Whether a question was never answered. One that is gone with its server counts as that, too."""
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(UUID(run_id)).state
        except ObjectNotFound:
            return True
    return state is not None and state.is_failed() and state.message == _NEVER_ANSWERED
