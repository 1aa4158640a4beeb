"""`python -m stages.reporting`: the table, the report, and where files come from."""

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stages.config.loading import ParamsError
from stages.deployment.command_line import Parser
from stages.runtime.exits import Exit, as_stage_error
from stages.runtime.progress import say

if TYPE_CHECKING:
    from stages.reporting.collecting import Collected

REPORT = Path("artifacts/report.html")
BUNDLE = Path("artifacts/bundle")


def _table(_: argparse.Namespace) -> None:
    from stages.reporting import collecting

    _say_table(collecting.collect())


def _say_table(found: "Collected") -> None:
    from stages.reporting import table

    for line in table.text(found.rows) if found.rows else ["no model is profiled yet: `shipway run profile_model`"]:
        say(line)
    for note in found.notes:
        say(f"note: {note}")


def _report(_: argparse.Namespace) -> None:
    from stages.reporting import collecting, page, provenance
    from stages.runtime.files import write_bytes

    found = collecting.collect()
    bundle = provenance.describe(found.bundle) if found.bundle else None
    write_bytes(REPORT, page.page(found, bundle).encode())
    _say_table(found)
    say(f"bundle: {found.bundle}" if found.bundle else "bundle: not made yet; `shipway run bundle`")
    say(f"report: {REPORT}")


def _show(chosen: argparse.Namespace) -> None:
    from stages.reporting import provenance, showing

    found = provenance.describe(chosen.file)
    if chosen.json:
        say(json.dumps(found, indent=2, ensure_ascii=False, default=str))
        return
    for line in showing.lines(found):
        say(line)


def _stage(chosen: argparse.Namespace) -> None:
    from stages.reporting.stage_view import view

    say(json.dumps(view(chosen.stage), ensure_ascii=False))


def _restore(chosen: argparse.Namespace) -> None:
    from stages.reporting.restoring import restore

    say(json.dumps(restore(chosen.file), ensure_ascii=False))


def _release(chosen: argparse.Namespace) -> None:
    from stages.reporting.releasing import release

    *bundle, dest = chosen.paths
    placed = release(bundle[0] if bundle else BUNDLE, dest)
    say(f"released to {placed}; its record is {placed.name}.record.json beside it")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m stages.reporting", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], about: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=about, description=about)
        added.set_defaults(run=run)
        return added

    command("report", _report, "write artifacts/report.html and print the table")
    command("table", _table, "print the table")
    show = command("show", _show, "where a file comes from")
    show.add_argument("file", type=Path, metavar="FILE")
    show.add_argument("--json", action="store_true", help="as JSON")
    stage = command("stage", _stage, "what one stage left, as JSON: table, markdown, svg")
    stage.add_argument("stage", metavar="STAGE")
    restore = command("restore", _restore, "the parameters that made a file, as JSON")
    restore.add_argument("file", type=Path, metavar="FILE")
    release = command("release", _release, "copy a bundle and its record to a folder: [BUNDLE] DEST")
    release.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="[BUNDLE] DEST")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code. One line on stderr for a foreseen end."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.command == "release" and len(chosen.paths) > 2:
        parser.error("release takes [BUNDLE] DEST")
    try:
        chosen.run(chosen)
    except ParamsError as error:
        return _end(chosen.command, Exit.PARAMS, str(error))
    except Exception as error:
        foreseen = as_stage_error(error)
        if foreseen is None:
            traceback.print_exc()
            return _end(
                chosen.command, Exit.BUG, f"a bug of Shipway, please report it: {type(error).__name__}: {error}"
            )
        return _end(chosen.command, foreseen.code, foreseen.sentence)
    return int(Exit.DONE)


def _end(command: str, code: Exit, sentence: str) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"{command}: {code.name.lower()} (exit {int(code)}): {sentence}\n")
    return int(code)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends quietly.
    sys.exit(main())
