"""A person's path in a real browser: a custom run, a failed gate, Retry, an approval."""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows import server
from tests.conftest import Workspace
from tests.e2e.browser import person
from tests.e2e.served import FINAL, Served, serving, until

pytestmark = pytest.mark.e2e


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: SHIPWAY_PICTURES, or a folder that nobody looks at."""
    folder = Path(os.environ.get("SHIPWAY_PICTURES", tmp_path / "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def told() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A webhook of the person's: its address, and what it was told."""
    heard: list[dict[str, str]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{hook.server_port}/hook", heard
        hook.shutdown()


def newest_run(served: Served, flow: str, known: set[str]) -> str:
    """Waits for a run of a flow that was not there before; its id."""

    def found() -> list[str]:
        wanted = {"flows": {"name": {"any_": [flow]}}, "flow_runs": {"state": {"name": {"not_any_": ["Scheduled"]}}}}
        return [run["id"] for run in served.ask("flow_runs/filter", wanted) if run["id"] not in known]

    until(lambda: bool(found()), f"no run of {flow} came")
    return found()[0]


def test_a_custom_run_a_failed_gate_and_retry(
    tiny: Workspace,
    prefect_server: server.Address,
    tmp_path: Path,
    pictures: Path,
    told: tuple[str, list[dict[str, str]]],
) -> None:
    (tmp_path / "end").write_text("GateFailed")
    tiny.git("add", "-A")
    tiny.git("commit", "-q", "-m", "done")
    with (
        serving(tiny, prefect_server, TINY_END_FILE=str(tmp_path / "end"), SHIPWAY_WEBHOOK=told[0]) as served,
        person(prefect_server.base, pictures) as someone,
    ):
        known = {run["id"] for run in served.ask("flow_runs/filter", {})}
        someone.open_form("on-demand")
        someone.open_section("train")
        someone.fill("lr", "-1")
        someone.submit()
        someone.page.get_by_text(re.compile("not valid|minimum")).first.wait_for()
        someone.fill("lr", "0.0123")
        someone.page.keyboard.press("Tab")
        someone.picture("form")
        someone.submit_until_taken()
        run = newest_run(served, "train-to-deploy", known)
        someone.open_run(run)
        someone.page.get_by_text("Gate failed").first.wait_for()
        someone.picture("gate")
        assert served.state(run) == ("FAILED", "Gate failed", "the sentence of GateFailed")
        assert served.tasks(run)["second@b"] == ("Gate failed", "the sentence of GateFailed")
        until(lambda: any(one["id"] == run for one in told[1]), "the webhook was not told")
        assert ("Gate failed", "the sentence of GateFailed") in {(one["state"], one["message"]) for one in told[1]}
        (tmp_path / "end").write_text("")
        someone.choose("Retry")
        someone.page.get_by_role("button", name="Retry").last.click()
        until(lambda: served.state(run)[0] == "COMPLETED", lambda: str(served.state(run)))
        someone.page.get_by_text("Completed").first.wait_for()
        assert b"lr: 0.0123" in tiny.git("show", f"{served.branch(run)}:params.yaml").encode()
        log = served.log.read_text()
        assert "Traceback" not in log, log


def test_an_approval_puts_one_bundle_into_production_and_rollback_takes_it_back(
    copied: Workspace, prefect_server: server.Address, pictures: Path
) -> None:
    production = copied.root.parent / "shipway-production"
    with serving(copied, prefect_server) as served, person(prefect_server.base, pictures) as someone:
        known = {run["id"] for run in served.ask("flow_runs/filter", {})}
        run = served.run("train-to-deploy/on-demand")
        assert served.until_state(run)[:2] == ("COMPLETED", "Completed")
        assert {state for state, _ in served.tasks(run).values()} == {"Cached"}
        with committed(served, {"automatic: false": "timeout_h: 0.01"}):
            night = served.run("train-to-deploy/nightly", propose=True)  # Nobody has asked about that bundle yet.
            assert "asked for approval" in served.until_state(night)[2]
            unanswered = newest_run(served, "promote", known)
            served.until_state(unanswered, "Suspended")
        other, late = second_candidate(served)
        assert served.until_state(unanswered)[::2] == ("FAILED", "The flow was paused and never resumed.")
        known = {run["id"] for run in served.ask("flow_runs/filter", {})}
        night = served.run("train-to-deploy/nightly", propose=True)
        assert "asked for approval" in served.until_state(night)[2]
        question = newest_run(served, "promote", known)
        served.until_state(question, "Suspended")
        with (copied.root / "params.yaml").open("a") as file:
            file.write("not_committed: 1\n")  # A person is in the midst of an edit.
        again = served.run("train-to-deploy/nightly", propose=True)
        assert served.until_state(again)[:2] == ("COMPLETED", "No change")
        copied.git("checkout", "-q", "params.yaml")
        assert not (production / "current").exists()
        someone.open_run(question)
        someone.choose("Resume")
        someone.page.get_by_role("dialog").get_by_text("nothing is in production yet").wait_for()
        someone.page.get_by_role("switch").last.click()
        someone.fill("Who", "Ada")
        someone.fill("Comment", "looks good")
        someone.picture("approval")
        someone.page.get_by_role("button", name="Resume").last.click()
        until(lambda: served.state(question)[0] in FINAL, lambda: str(served.state(question)))
        assert served.state(question)[1] == "Promoted", served.state(question)
        digest = (production / "current").readlink().name
        (line,) = map(json.loads, (production / "audit.jsonl").read_text().splitlines())
        assert (line["what"], line["who"], line["from"], line["to"]) == ("promotion", "Ada", None, digest)
        assert "is whole" in copied.shipway("verify", str(production / "current")).stdout
        assert json.loads(copied.shipway("show", str(production / digest), "--json").stdout)["made"]["commit"]
        twice = served.run("promote/release", digest=digest[:12])
        assert served.until_state(twice)[:2] == ("COMPLETED", "In production")
        answer(served, late, approve=True)  # It was asked when nothing was in production.
        assert served.until_state(late)[:2] == ("FAILED", "Stale")
        assert (production / "current").readlink().name == digest
        reject_promote_and_roll_back(served, production, other, digest)
        elsewhere = {"automatic: false": "automatic: true", "../shipway-production": "../another-production"}
        with committed(served, elsewhere):
            by_itself = served.run("promote/release", digest=other)
            assert served.until_state(by_itself)[:2] == ("COMPLETED", "Promoted")
        assert (production.with_name("another-production") / "current").readlink().name == other
        assert (production / "current").readlink().name == digest
        a_part_of_the_stages_makes_no_candidate(served)
        log = served.log.read_text()
        assert "Traceback" not in log, log


def a_part_of_the_stages_makes_no_candidate(served: Served) -> None:
    """Its bundle is an older commit's, which was trained on what is now in the test split."""
    known = set((served.workspace.root / ".shipway/candidates").glob("*.json"))
    run = served.run("train-to-deploy/on-demand", stage="prepare_data", overrides={"seed": 7})
    assert served.until_state(run)[:2] == ("COMPLETED", "Completed")
    assert "candidate" not in served.state(run)[2]
    assert set((served.workspace.root / ".shipway/candidates").glob("*.json")) == known


def second_candidate(served: Served) -> tuple[str, str]:
    """Another bundle, and a question about it: digest and run."""
    known = set((served.workspace.root / ".shipway/candidates").glob("*.json"))
    run = served.run("train-to-deploy/on-demand", overrides={"bundle": {"stored_predictions": 3}})
    assert served.until_state(run)[:2] == ("COMPLETED", "Completed")
    (made,) = set((served.workspace.root / ".shipway/candidates").glob("*.json")) - known
    question = served.run("promote/release", digest=made.stem)
    served.until_state(question, "Suspended")
    return made.stem, question


@contextmanager
def committed(served: Served, changes: dict[str, str]) -> Iterator[None]:
    """Inside, the last commit of the served repository has other settings."""
    params, git = served.workspace.root / "params.yaml", served.workspace.git
    for old, new in changes.items():
        text = params.read_text()
        assert text.count(old) == 1
        params.write_text(text.replace(old, new))
    git("commit", "-q", "-m", "other settings", "--", "params.yaml")
    yield
    git("reset", "-q", "--hard", "HEAD~1")


def reject_promote_and_roll_back(served: Served, production: Path, digest: str, former: str) -> None:
    """A rejection leaves production alone; an approval swaps it, a rollback swaps it back."""
    first, second = (served.run("promote/release", digest=digest) for _ in range(2))
    for question in (first, second):
        served.until_state(question, "Suspended")
    answer(served, first, approve=False)
    assert served.until_state(first)[:2] == ("COMPLETED", "Rejected")
    assert (production / "current").readlink().name == former
    answer(served, second, approve=True)
    assert served.until_state(second)[:2] == ("COMPLETED", "Promoted")
    assert (production / "current").readlink().name == digest
    labels = production / former / "labels.json"
    content = labels.read_bytes()
    labels.write_bytes(content + b" ")
    refused = served.workspace.shipway("rollback", check=False)
    assert (refused.returncode, refused.stdout) == (65, "")
    assert "nothing was swapped" in refused.stderr
    assert (production / "current").readlink().name == digest
    labels.write_bytes(content)
    assert former in served.workspace.shipway("rollback").stdout
    assert (production / "current").readlink().name == former
    whats = [json.loads(line)["what"] for line in (production / "audit.jsonl").read_text().splitlines()]
    assert whats == ["promotion", "rejection", "promotion", "rollback"]


def answer(served: Served, question: str, *, approve: bool) -> None:
    """Resumes a suspended promotion with a person's word."""
    body = {"run_input": {"approve": approve, "who": "Bob", "comment": ""}}
    assert served.ask(f"flow_runs/{question}/resume", body)["status"] == "ACCEPT"
