"""A stage that changes nothing hands its input's files on, byte for byte, and says why."""

import shutil
from pathlib import Path

from stages.models import store
from stages.models.counting import Counts
from stages.training.history import write_skipped


def hand_on(source: Path, model: Path, history: Path, reason: str) -> tuple[Counts, float]:
    """Copies weights and structure of the model in `source` to the folder `model`, with status `skipped`.

    `history` becomes that of a skipped stage. Returns size and validation accuracy as `source` has them.
    """
    before = store.read_status(source)
    for name in (store.WEIGHTS, store.STRUCTURE):
        shutil.copyfile(source / name, model / name)
    counts = Counts(int(before["params"]), int(before["macs"]))
    accuracy = float(before["val_accuracy"])
    store.write_status(model, "skipped", reason, counts, accuracy)
    write_skipped(history, {"reason": reason})
    return counts, accuracy
