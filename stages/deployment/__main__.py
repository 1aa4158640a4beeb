"""`python -m stages.deployment`: `verify BUNDLE` checks one, `compare NAME=BUNDLE ...` says what each is worth (JSON).

0, or 65 with one line for a damaged bundle.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from stages.deployment.command_line import Parser
from stages.deployment.verifying import verify
from stages.runtime.exits import as_stage_error
from stages.runtime.progress import say

DATA = Path("artifacts/prepare_data/data")


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise ValueError(text)  # argparse says what was expected.
    return name, Path(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = Parser(prog="python -m stages.deployment", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("verify", help="checksums, files too many, stored predictions")
    command.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    command = commands.add_parser("compare", help="accuracy, size and latency of bundles on the present test split")
    command.add_argument("bundles", nargs="+", type=_named, metavar="NAME=BUNDLE")
    command.add_argument("--data", type=Path, default=DATA, help="what prepare_data left")
    command.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "compare":
            from stages.deployment.comparing import compare  # `verify` need not wait for it.

            say(json.dumps(compare(dict(chosen.bundles), chosen.data, chosen.threads)))
        else:
            say(verify(chosen.bundle))
    except Exception as error:
        foreseen = as_stage_error(error)
        if foreseen is None:
            raise
        sys.stderr.write(f"{chosen.command}: {foreseen.sentence}\n")
        return int(foreseen.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
