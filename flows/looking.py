"""What is looked at before DVC removes the outputs of what will run."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flows import supervisor
from flows.ends import Ended
from stages.config.data import kind_fault
from stages.config.exits import Exit
from stages.config.loading import PARAMS_FILE, load

_BUILD_NETWORKS = {"find_batch_size", "train", "distill"}


def look(tree: Path, due: Sequence[str]) -> Ended:
    """How the run would end for certain: a file where a folder is needed, a network that cannot be looked up."""
    data = load(tree / PARAMS_FILE)["data"]
    fault = kind_fault(data["source"], str(tree / data["path"])) if "prepare_data" in due else None
    if fault is not None:
        return Ended(Exit.DATA, fault, "prepare_data")
    if not _BUILD_NETWORKS.intersection(due):
        return Ended(Exit.DONE)
    code, said = supervisor.call([sys.executable, "-m", "stages.models"], cwd=tree, capture=True)
    return Ended(code, said.strip())
