"""`python -m stages.models`: looks the networks of params.yaml up; 0, or 64 with one line for each that is wrong."""

import sys

from stages.config.distill import Distill
from stages.config.loading import PARAMS_FILE, ParamsError, load
from stages.config.model import Model
from stages.models.registry import look_up
from stages.runtime.exits import BadParams, Exit


def main() -> int:
    """The exit code. Names and arguments are looked at; that a network takes the data is seen by the stages."""
    try:
        found = load(PARAMS_FILE)
    except ParamsError as error:
        return _refuse([str(error)])
    wanted = {"model": Model(**found["model"])}
    distill = Distill(**found["distill"])
    if distill.enabled:
        wanted["distill.student"] = distill.student
    faults = []
    for section, model in wanted.items():
        try:
            look_up(model)
        except BadParams as error:
            faults.append(f"{PARAMS_FILE}: {section}: {error.sentence}")
    return _refuse(faults) if faults else int(Exit.DONE)


def _refuse(lines: list[str]) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(Exit.PARAMS)


if __name__ == "__main__":
    sys.exit(main())
