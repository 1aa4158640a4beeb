"""Bad samples: all of them are listed and stop the stage, or they are dropped and counted (`data.on_bad_sample`)."""

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.runtime.exits import BadData

NOT_FINITE = "not_finite"
LABEL = "label"
UNREADABLE = "unreadable"
OTHER_SIZE = "other_size"
IN_TEST = "in_official_test"
_SHOWN = 5


class BadSamples:
    """Collects what is wrong with which sample."""

    def __init__(self, policy: str) -> None:
        self.drops = policy == "drop"
        self._found: list[tuple[str, str, str]] = []

    def add(self, reason: str, sample: str, problem: str) -> None:
        """`reason` is what is counted (`not_finite`, ...), `problem` what a person reads."""
        self._found.append((reason, sample, problem))

    @property
    def counts(self) -> dict[str, int]:
        """How many, by reason."""
        return dict(sorted(Counter(reason for reason, _, _ in self._found).items()))

    def settle(self) -> None:
        """Raises `BadData` with all of them in the evidence, unless they are to be dropped."""
        if not self._found or self.drops:
            return
        shown = "; ".join(f"{sample}: {problem}" for _, sample, problem in self._found[:_SHOWN])
        more = f"; and {len(self._found) - _SHOWN} more" if len(self._found) > _SHOWN else ""
        what = "1 bad sample" if len(self._found) == 1 else f"{len(self._found)} bad samples"
        listed = [{"reason": reason, "sample": sample, "problem": problem} for reason, sample, problem in self._found]
        raise BadData(
            f"{what}: {shown}{more}. Repair the data, or leave them out with data.on_bad_sample: drop",
            {"counts": dict(self.counts), "bad_samples": [dict(row) for row in listed]},
        )


def whole_number(value: Any) -> int | None:
    """The integer that a label is (3, np.int64(3), 3.0), or None for anything else, booleans too."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)) and math.isfinite(value) and value == int(value):
        return int(value)
    return None


def label_faults(labels: npt.NDArray[Any], limit: int) -> dict[int, str]:
    """What is wrong with which row's label; labels must be integers from 0 to limit - 1."""
    allowed = f"must be an integer from 0 to {limit - 1}"
    if labels.dtype.kind in "iu":
        rows = np.flatnonzero((labels < 0) | (labels >= limit))
        return {int(row): f"label {int(labels[row])} {allowed}" for row in rows}
    faults: dict[int, str] = {}
    for row, value in enumerate(labels):
        number = whole_number(value)
        if number is None or not 0 <= number < limit:
            shown = value.item() if isinstance(value, np.generic) else value
            faults[row] = f"label {shown!r} {allowed}"
    return faults
