"""Several fine-tunings as one history: steps and epochs go on counting."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.runtime.files import write_bytes, write_json
from stages.training.history import CURVES, EPOCHS, META, STEPS, read_meta, write_curves


def join(parts: Sequence[Path], folder: Path) -> None:
    """Writes the histories in `parts`, in their order, as one into `folder`.

    meta.json is the last part's, with all epochs together; `rounds` names the first epoch and step of each part.
    """
    steps: list[dict[str, Any]] = []
    epochs: list[dict[str, Any]] = []
    rounds: list[dict[str, int]] = []
    planned = 0
    for part in parts:
        first_epoch, first_step = planned, steps[-1]["step"] if steps else 0
        rounds.append({"epoch": first_epoch + 1, "step": first_step + 1})
        for rows, name in ((steps, STEPS), (epochs, EPOCHS)):
            rows += [
                {**row, "epoch": row["epoch"] + first_epoch, "step": row["step"] + first_step}
                for row in _rows(part / name)
            ]
        meta = read_meta(part)
        planned += int(meta["epochs"])
    best = rounds[-1]["epoch"] - 1 + int(meta["best_epoch"])
    write_json(folder / META, {**meta, "epochs": planned, "best_epoch": best, "rounds": rounds})
    for rows, name in ((steps, STEPS), (epochs, EPOCHS)):
        write_bytes(folder / name, "".join(json.dumps(row) + "\n" for row in rows).encode())
    write_curves(folder / CURVES, epochs)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
