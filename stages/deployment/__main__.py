"""`python -m stages.deployment verify BUNDLE`: checks a bundle; 0 when it is whole, 65 with one line when not."""

import sys
from collections.abc import Sequence
from pathlib import Path

from stages.deployment.command_line import Parser
from stages.deployment.verifying import verify
from stages.runtime.exits import as_stage_error
from stages.runtime.progress import say


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = Parser(prog="python -m stages.deployment", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("verify", help="checksums, files too many, stored predictions")
    command.add_argument("bundle", type=Path, metavar="BUNDLE", help="the bundle's folder")
    chosen = parser.parse_args(arguments)
    try:
        say(verify(chosen.bundle))
    except Exception as error:
        foreseen = as_stage_error(error)
        if foreseen is None:
            raise
        sys.stderr.write(f"verify: {foreseen.sentence}\n")
        return int(foreseen.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
