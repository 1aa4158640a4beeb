"""The commands around served runs: `shipway serve`, `resume`, `take`, `rollback`, `push`, `pull`.

What they need is imported when they run: Prefect takes seconds, DVC half a second.
"""

import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows import running, workspace
from flows.ends import Refused
from stages.config.exits import Exit
from stages.config.loading import load

served = typer.Typer()


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@served.command(epilog=examples("shipway serve", "SHIPWAY_WEBHOOK=https://hooks.example/x shipway serve --port 4300"))
def serve(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of the UI and the API, on 127.0.0.1.")] = 4200,
) -> int:
    """Serve runs on demand, the nightly run and promotion, with Prefect's UI, until Ctrl-C.

    A server of its own on 127.0.0.1, or the one that PREFECT_API_URL names. Runs work in clones of their own, at the
    last commit. SHIPWAY_WEBHOOK: an address that failures and questions for approval are sent to.
    """
    from flows import production, serving

    tree = workspace.root()
    workspace.check_writable(tree)
    production.place(tree, load())
    serving.require_webhook()
    return serving.serve(tree, port, running.say)


@served.command(epilog=examples("shipway resume"))
def resume() -> int:
    """Let the last failed run go on: a served one as by Retry in the UI, else the one in this folder."""
    from flows import resuming

    tree = workspace.root()
    return Exit.DONE if resuming.resume(tree, running.say) else running.run(running.Request())


@served.command(epilog=examples("shipway take shipway/amber-fox-1a2b3c4d"))
def take(branch: Annotated[str, typer.Argument(help="The branch that a served run names at its end.")]) -> int:
    """Bring the result of a served run into this working tree: merges its branch, checks its artifacts out."""
    from flows import taking

    return taking.take(workspace.root(), branch, running.say)


@served.command(epilog=examples("shipway rollback", "shipway rollback 4f2a81c0"))
def rollback(
    digest: Annotated[
        str | None, typer.Argument(help="A bundle in paths.production; the former one if left out.")
    ] = None,
) -> int:
    """Put the bundle that was in production before back into production, if it is whole."""
    from flows import production, supervisor
    from stages.config.loading import PARAMS_FILE, load

    tree = workspace.root()
    place = production.place(tree, load(tree / PARAMS_FILE))

    def require_whole(bundle: Path) -> None:
        command = [sys.executable, "-m", "stages.deployment", "verify", "--", str(bundle)]
        code, _, said = supervisor.call_and_hear(command, cwd=tree)
        if code != Exit.DONE:
            raise Refused(
                Exit(code), f"nothing was swapped (`shipway rollback DIGEST` takes another one): {said.strip()}"
            )

    found = production.rollback(place, digest, getpass.getuser(), require_whole)
    running.say(f"in production: {found} ({place / production.CURRENT})")
    return Exit.DONE


@served.command(
    epilog=examples("shipway push", "shipway push -r storage"),
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def push(context: typer.Context) -> int:
    """Send artifacts to DVC's remote (`dvc push`; all its options)."""
    return _dvc("push", context.args)


@served.command(
    epilog=examples("shipway pull", "shipway pull artifacts/bundle"),
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def pull(context: typer.Context) -> int:
    """Bring artifacts from DVC's remote (`dvc pull`; all its options)."""
    return _dvc("pull", context.args)


def _dvc(name: str, arguments: Sequence[str]) -> int:
    from flows import dvc

    tree = workspace.root()
    with workspace.only_run(tree, running.say):
        return dvc.transfer(tree, name, arguments)
