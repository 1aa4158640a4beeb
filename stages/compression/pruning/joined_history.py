"""Several fine-tunings as one history: steps and epochs go on counting."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.runtime.files import write_bytes, write_json
from stages.training.history import CURVES, EPOCHS, GROWING, META, STEPS, read_meta, read_rows, write_curves


def join(parts: Sequence[Path], folder: Path) -> None:
    """Writes the histories in `parts`, in their order, as one into `folder`.

    meta.json is the last part's, with all epochs together; `rounds` names the first epoch and step of each part.
    """
    joined: dict[str, list[dict[str, Any]]] = {name: [] for name in GROWING}
    rounds: list[dict[str, int]] = []
    planned = 0
    for part in parts:
        first_epoch, first_step = planned, joined[STEPS][-1]["step"] if joined[STEPS] else 0
        rounds.append({"epoch": first_epoch + 1, "step": first_step + 1})
        for name, rows in joined.items():
            rows += [
                {**row, "epoch": row["epoch"] + first_epoch, "step": row["step"] + first_step}
                for row in read_rows(part / name)
            ]
        meta = read_meta(part)
        planned += int(meta["epochs"])
    best = rounds[-1]["epoch"] - 1 + int(meta["best_epoch"])
    reason = f"all {planned} epochs" if meta["reason"] == f"all {meta['epochs']} epochs" else meta["reason"]
    whole = {**meta, "epochs": planned, "best_epoch": best, "rounds": rounds, "reason": reason}
    write_json(folder / META, whole)
    for name, rows in joined.items():
        write_bytes(folder / name, "".join(json.dumps(row) + "\n" for row in rows).encode())
    write_curves(folder / CURVES, joined[EPOCHS])
