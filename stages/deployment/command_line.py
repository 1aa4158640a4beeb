"""The parser of the parts' own command lines."""

import argparse
import sys
from typing import NoReturn

from stages.runtime.exits import Exit


class Parser(argparse.ArgumentParser):
    """argparse ends in 2 for a wrong command line; sysexits.h says 64. Holds for its subcommands too."""

    def error(self, message: str) -> NoReturn:
        """Prints usage and message, ends with 64."""
        self.print_usage(sys.stderr)
        self.exit(int(Exit.PARAMS), f"{self.prog}: {message}\n")
