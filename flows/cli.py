"""The `shipway` command. Whatever needs a part is started as a process: this file imports neither torch nor Prefect."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from flows import running, supervisor, workspace
from flows.ends import Refused, StopAsked, meaning
from flows.served_commands import examples, served
from stages.config.editing import changes_to, edit
from stages.config.exits import Exit
from stages.config.loading import ParamsError, load

cli = typer.Typer(
    name="shipway",
    help="From raw data to a gated, profiled INT8 ONNX bundle. `shipway run` is all you need to start.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_USAGE_ERROR = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""click's own error, which typer carries inside and does not export."""

_REPORTING = (sys.executable, "-m", "stages.reporting")
_DEPLOYMENT = (sys.executable, "-m", "stages.deployment")


@cli.command(
    epilog=examples(
        "shipway run                              all that is stale",
        "shipway run train                        up to one stage",
        "shipway run --set train.lr=0.01          edits params.yaml, then runs",
        "shipway run --set 'prune.fit.epochs=4' --set seed=1",
        "shipway run --baseline                   without distillation, pruning and quantization",
        "shipway run --prefect                    the same as a Prefect flow, with its UI",
    )
)
def run(
    stage: Annotated[str | None, typer.Argument(help="A stage of dvc.yaml: run it and what it needs.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change params.yaml first (checked; comments are kept)."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Run also what is up to date: all stages, or STAGE and every one before it (as DVC does)."
        ),
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Switch distill, prune and quantize off in params.yaml first.")
    ] = False,
    prefect: Annotated[
        bool, typer.Option("--prefect", help="Run as a Prefect flow on a server of its own, with its UI.")
    ] = False,
) -> int:
    """Run the pipeline: what is stale, in order, and show the table.

    The exit code is that of the stage which ended the run: 0 done, 3 a gate failed, 64 bad parameters, 65 bad data,
    70 a bug, 74 disk or permissions, 75 stopped (run again to go on).
    """
    return running.run(running.Request(stage, assignments or (), force, baseline, prefect))


@cli.command(
    epilog=examples("shipway show artifacts/bundle", "shipway show artifacts/train/model/weights.safetensors --json")
)
def show(
    file: Annotated[Path, typer.Argument(help="A checkpoint, a .safetensors or .onnx file, or a bundle.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show where a file comes from: parameters, data, code, commit, ancestors."""
    workspace.root()
    return _call([*_REPORTING, "show", *(["--json"] if as_json else []), "--", str(_existing(file))])


@cli.command(epilog=examples("shipway restore artifacts/bundle", "shipway restore release/model.onnx"))
def restore(file: Annotated[Path, typer.Argument(help="A file or folder that a run left.")]) -> int:
    """Write the parameters that made a file back into params.yaml, and name the commit to check out."""
    tree = workspace.root()
    code, printed = supervisor.call([*_REPORTING, "restore", "--", str(_existing(file))], capture=True)
    if code != Exit.DONE:
        return code
    found = json.loads(printed)
    workspace.check_writable(tree)
    with workspace.only_run(tree, running.say):
        changed = edit(changes_to(found["sections"]))
    for dotted, (old, new) in changed.items():
        running.say(f"params.yaml: {dotted}: {old} -> {new}")
    if not changed:
        running.say("params.yaml: already as it was for this file")
    for line in [*found.get("notes", []), _where_the_code_is(found)]:
        running.say(line)
    return Exit.DONE


def _where_the_code_is(found: dict[str, Any]) -> str:
    if not found.get("commit"):
        return "code: the commit is not known (made outside git, or its run record is not here)"
    dirty = "; it was made with uncommitted changes, which are not in git" if found.get("dirty") else ""
    return f"code: git checkout {found['commit']} -- stages flows dvc.yaml{dirty}"


@cli.command(epilog=examples("shipway release", "shipway release /srv/models/digits"))
def release(
    dest: Annotated[Path | None, typer.Argument(help="A folder; paths.production of params.yaml if left out.")] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Release the bundle even if it is not up to date.")] = False,
) -> int:
    """Copy the bundle and its run record to where it is used.

    A bundle that params.yaml, code or data have moved away from (also by a run that a gate stopped) is refused.
    """
    tree = workspace.root()
    if not stale:
        _require_up_to_date(tree)
    return _call([*_REPORTING, "release", "--", str(dest or load()["paths"]["production"])])


def _require_up_to_date(tree: Path) -> None:
    from flows import dvc  # Half a second that other commands need not wait.

    changed = dvc.plan(tree, running.say).candidates("bundle")
    if changed:
        what = f"{changed[0]} and {len(changed) - 1} more" if len(changed) > 1 else changed[0]
        raise Refused(
            Exit.PARAMS, f"artifacts/bundle is not up to date ({what} would run); `shipway run`, or release it --stale"
        )


@cli.command(epilog=examples("shipway predict artifacts/bundle a.png b.png", "shipway predict artifacts/bundle x.npz"))
def predict(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    files: Annotated[list[Path], typer.Argument(help="PNG or JPEG files, folders of them, .npy or .npz files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the probability of every class.")] = False,
) -> int:
    """Verify a bundle, then predict with its own predict.py."""
    script = _existing(bundle).absolute() / "predict.py"  # Absolute: python takes `-x/predict.py` for options.
    code, printed = supervisor.call([*_DEPLOYMENT, "verify", "--", str(bundle)], capture=True)
    if code != Exit.DONE:
        typer.echo(printed, nl=False, err=True)
        return code
    return _call([sys.executable, str(script), *(["--json"] if as_json else []), "--", *map(str, files)])


@cli.command(epilog=examples("shipway verify artifacts/bundle"))
def verify(bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")]) -> int:
    """Check a bundle: the checksum of every file, and the predictions stored in it."""
    return _call([*_DEPLOYMENT, "verify", "--", str(_existing(bundle))])


cli.add_typer(served)


def _existing(path: Path) -> Path:
    if not path.exists():
        raise Refused(Exit.PARAMS, f"{path} does not exist; give a path that `ls` shows")
    if not path.is_file() and not path.is_dir():
        raise Refused(Exit.PARAMS, f"{path} is neither a file nor a folder; give one that a run left")
    return path


def _call(command: Sequence[str]) -> int:
    code, _ = supervisor.call(command)
    return code


def app() -> NoReturn:
    """Entry point: every foreseen end is one line and a documented exit code, never a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    sys.exit(_end(sys.argv[1:] or ["--help"]))


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """The first signal stops; more of them change nothing, since a checkpoint may be half-way."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.write(2, b"shipway: stopping; this takes 30 s at most\n")
    raise StopAsked


def _end(arguments: Sequence[str]) -> int:
    try:
        code = cli(list(arguments), standalone_mode=False)
        return int(code or 0)
    except Refused as refused:
        return _say_end(refused.code, refused.sentence)
    except ParamsError as error:
        return _say_end(Exit.PARAMS, str(error))
    except StopAsked:
        return _say_end(Exit.STOPPED, "stopped on request; run again to go on")
    except BrokenPipeError:  # `shipway run | head`: nobody reads any more, and nothing is to be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return int(Exit.DISK)
    except OSError as error:
        return _say_end(Exit.DISK, f"cannot read or write: {error}; free space or fix the permissions, then run again")
    except Exception as error:
        if isinstance(error, _USAGE_ERROR):
            return _say_end(Exit.PARAMS, f"{_message(error)}; see `shipway --help`")
        traceback.print_exc()
        return _say_end(Exit.BUG, f"a bug of Shipway, please report it: {type(error).__name__}: {error}")


def _message(error: Any) -> str:
    return str(error.format_message()).rstrip(".?")


def _say_end(code: Exit, sentence: str) -> int:
    for line in sentence.splitlines():
        typer.echo(f"shipway: {meaning(code)} (exit {int(code)}): {line}", err=True)
    return int(code)


if __name__ == "__main__":
    app()
