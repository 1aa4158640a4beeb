"""Promotion as a flow: shows one candidate beside production, waits for a person's word, swaps the pointer.

It approves one digest. The bundle is taken anew from DVC's cache at the candidate's commit and verified; the pointer is
swapped only if production is still what the person was shown.
"""

import json
import sys
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, runtime, suspend_flow_run
from prefect.client.schemas.objects import State
from prefect.input import RunInput
from pydantic import Field, ValidationError

from flows import cache, candidates, clones, comparison, git, production, supervisor
from flows.candidates import Candidate
from flows.ends import Ended, Refused
from flows.states import done, failed
from flows.workspace import STATE
from stages.config.editing import replace_text
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, ParamsError, parse_yaml, validate

_ASKED = STATE / "approvals"


class Approval(RunInput):
    """A person's word on one bundle."""

    approve: bool = Field(default=False, description="Put this bundle into production.")
    who: str = Field(min_length=1, max_length=200, pattern=r"\S", description="Your name, for the audit.")
    comment: str = Field(default="", max_length=2000, description="Why; for the audit.")


@flow(name="promote", persist_result=False, log_prints=False)
def promote(digest: str | None = None) -> State[Ended]:
    """Puts one bundle into production, after a person's approval.

    Args:
        digest: The bundle, by the start of its digest; left out: the newest one that a served run has made.

    """
    home, logger = Path.cwd(), get_run_logger()
    try:
        candidate = candidates.find(home, digest)
        params = _params(home)
        place = production.place(home, params)
        if production.current(place) == candidate.digest:
            return done("In production", f"{candidate.digest[:12]} is in production already")
        settings = params["promote"]
        clone = clones.for_run(home, str(runtime.flow_run.id), "promote", candidate.commit, logger.info)
        rows = _fetched(clone, candidate, place)
        better, sentence = comparison.verdict(rows, settings["metric"], settings["min_gain"])
        if settings["automatic"] and better:
            said = Approval(approve=True, who="params.yaml (promote.automatic)", comment=sentence)
        else:
            said = _ask(home, candidate, rows, sentence, settings["timeout_h"])
        return _decide(clone, place, candidate, rows, said)
    except (Refused, ParamsError) as error:
        return _failed(error)


def _params(home: Path) -> dict[str, Any]:
    """Of the last commit: a person may be in the midst of an edit."""
    where = f"params.yaml of the last commit of {home}"
    return validate(parse_yaml(git.committed(home, PARAMS_FILE), where), where)


def _fetched(clone: clones.Clone, candidate: Candidate, place: Path) -> comparison.Rows:
    """Brings the bundle from the cache, checks that it is the one, and compares it with production."""
    cache.bring_in(clone.root, get_run_logger().info)
    if not (clone.root / comparison.BUNDLE).is_dir():
        raise Refused(
            Exit.DATA,
            f"bundle {candidate.digest[:12]} is no longer in DVC's cache; `shipway pull` brings it from the remote, or "
            f"run train-to-deploy/on-demand at revision {candidate.branch}",
        )
    now = production.current(place)
    rows = comparison.compare(clone.root, place / now if now else None)
    found = rows[comparison.CANDIDATE]["digest"]
    if found != candidate.digest:
        raise Refused(
            Exit.DATA,
            f"what DVC's cache holds for {candidate.branch} is not bundle {candidate.digest[:12]} but {found[:12]}; "
            f"run train-to-deploy/on-demand at revision {candidate.branch} with force",
        )
    return rows


def _ask(home: Path, candidate: Candidate, rows: comparison.Rows, sentence: str, hours: float) -> Approval:
    """Suspends until a person answers. Raises `Refused` when production has moved on since the question."""
    now = rows.get(comparison.PRODUCTION, {}).get("digest")
    question = home / _ASKED / f"{runtime.flow_run.id}.json"
    if question.is_file():
        shown = json.loads(question.read_text("utf-8"))["production"]
        if shown != now:
            raise Refused(
                Exit.GATE, f"stale: {str(now)[:12]} has come into production since this was asked; promote anew"
            )
    else:
        question.parent.mkdir(parents=True, exist_ok=True)
        replace_text(question, json.dumps({"candidate": candidate.digest, "production": now}) + "\n")
    said = f"{comparison.table(rows)}\n\n{sentence}\n\nMade by run *{candidate.run}*, branch `{candidate.branch}`."
    asked = Approval.with_initial_data(description=said)
    try:
        return suspend_flow_run(wait_for_input=asked, timeout=int(hours * 3600), key=f"approve-{candidate.digest[:12]}")
    except ValidationError:  # It was scheduled past its form.
        raise Refused(Exit.PARAMS, "resumed without an answer; Retry asks again, Resume takes the answer") from None


def _decide(
    clone: clones.Clone, place: Path, candidate: Candidate, rows: comparison.Rows, said: Approval
) -> State[Ended]:
    """Acts on a person's word, under the lock of `paths.production`."""
    told = {"comment": said.comment, "run": candidate.run, "commit": candidate.commit, "compared": rows}
    shown = rows.get(comparison.PRODUCTION, {}).get("digest")
    with production.locked(place):
        now = production.current(place)
        if not said.approve:
            production.note(place, "rejection", said.who, digest=candidate.digest, **told)
            clone.remove()
            return done("Rejected", f"{said.who} rejected {candidate.digest[:12]}; production is as it was")
        if now not in (shown, candidate.digest):
            raise Refused(Exit.GATE, f"stale: {str(now)[:12]} has come into production meanwhile; promote anew")
        _release(clone, place)
        production.swap(place, candidate.digest, "promotion", said.who, **told)
    clone.remove()
    return done("Promoted", f"{said.who} put {candidate.digest[:12]} into production ({place / production.CURRENT})")


def _release(clone: clones.Clone, place: Path) -> None:
    command = [sys.executable, "-m", "stages.reporting", "release", "--", str(place)]
    code, _ = supervisor.call(command, cwd=clone.root, capture=True)
    if code:
        raise Refused(
            Exit(code), f"the bundle cannot be copied to {place}: `stages.reporting release` ended with {code}"
        )


def _failed(error: Refused | ParamsError) -> State[Ended]:
    code = error.code if isinstance(error, Refused) else Exit.PARAMS
    return failed(Ended(code, str(error)), "Stale" if str(error).startswith("stale:") else None)
