"""What a served run does once its stages are done: keeps the result, and proposes a better bundle for production."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment

from flows import candidates, comparison, last, production
from flows.clones import Clone
from flows.ends import Ended
from flows.states import done
from stages.config.loading import PARAMS_FILE, load

PROMOTION = "promote/release"


@dataclass(frozen=True)
class Nightly:
    """What a run does beside its stages."""

    update_data: bool
    propose: bool


def conclude(clone: Clone, name: str, asked: Nightly) -> State[Ended]:
    """Publishes the run's branch, writes its bundle down as a candidate, proposes it where that is wanted.

    "No change" when no stage ran and the bundle is known already. Raises `Refused`.
    """
    logger = get_run_logger()
    ran = sorted(last.read(clone.root))
    made = _compared(clone)
    digest = made[comparison.CANDIDATE]["digest"] if made else None
    known = candidates.known(clone.home)
    if not ran and (digest is None or digest in known):
        clone.remove()
        return done("No change", "nothing changed: every stage is up to date")
    clone.commit(f"{name}: {', '.join(ran) or 'restored from the cache'}")
    commit = clone.publish()
    message = f"the result is on branch {clone.branch}; `shipway take {clone.branch}` brings it into your tree"
    logger.info(message)
    if made and digest:
        when = datetime.now(UTC).isoformat(timespec="microseconds")
        candidates.keep(clone.home, candidates.Candidate(digest, commit, clone.branch, name, when, made))
        message += f"; {_propose(clone, made, digest, wanted=asked.propose)}"
    clone.remove()
    return done("Completed", message)


def _compared(clone: Clone) -> comparison.Rows | None:
    """The bundle and the one in production on this run's test split; None when the run stopped before the bundle."""
    if not (clone.root / comparison.BUNDLE / "manifest.json").is_file():
        return None
    place = production.place(clone.home)
    now = production.current(place)
    return comparison.compare(clone.root, place / now if now else None)


def _propose(clone: Clone, made: comparison.Rows, digest: str, *, wanted: bool) -> str:
    settings = load(clone.root / PARAMS_FILE)["promote"]
    better, sentence = comparison.verdict(made, settings["metric"], settings["min_gain"])
    create_markdown_artifact(
        f"{comparison.table(made)}\n\n{sentence}", key="comparison", description="the bundle beside production"
    )
    if not wanted or not better:
        return sentence
    now = made.get(comparison.PRODUCTION, {}).get("digest", "nothing")
    # The same question is asked once, however many nights find the same answer.
    run = cast(
        FlowRun,
        run_deployment(
            PROMOTION,
            parameters={"digest": digest},
            timeout=0,
            as_subflow=False,
            idempotency_key=f"{digest}-over-{now}",
            flow_run_name=f"approve {digest[:12]}",
        ),
    )
    return f"{sentence}; asked for approval in the run {run.name!r}"
