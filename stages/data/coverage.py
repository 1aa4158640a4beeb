"""Whether every class is there, in every split."""

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from stages.data.prepared import Indices
from stages.runtime.exits import BadData

_REQUIRED = ("train", "val", "test")
_SHOWN = 5


def check_samples(labels: npt.NDArray[np.int64], classes: tuple[str, ...], dropped: dict[str, int]) -> None:
    """Raises `BadData` when there is no sample, or only one class."""
    left = f" ({sum(dropped.values())} bad ones were dropped)" if dropped else ""
    if len(labels) == 0:
        raise BadData(f"the data must hold samples; it holds none{left}", {"dropped": dict(dropped)})
    present = np.unique(labels)
    if len(present) == 1:
        only = classes[int(present[0])]
        raise BadData(f"at least two classes must have samples; all {len(labels)} are of class {only!r}{left}")


def count_classes(splits: dict[str, Indices], labels: npt.NDArray[np.int64], classes: int) -> dict[str, list[int]]:
    """Samples of each class in each split."""
    return {name: np.bincount(labels[rows], minlength=classes).tolist() for name, rows in splits.items()}


def check_coverage(counts: dict[str, list[int]], classes: tuple[str, ...], min_per_class: int) -> None:
    """Raises `BadData` when a split is empty, or a class has fewer than `min_per_class` samples in one."""
    evidence: dict[str, JsonValue] = {"counts": {name: list(row) for name, row in counts.items()}}
    empty = [name for name, row in counts.items() if sum(row) == 0]
    if empty:
        sizes = ", ".join(f"{name} {sum(row)}" for name, row in counts.items())
        advice = "add samples (copies of one count once) or raise its share in section prepare_data"
        raise BadData(f"no split may be empty; {' and '.join(empty)} would be ({sizes}): {advice}", evidence)
    short = [index for index in range(len(classes)) if min(counts[name][index] for name in _REQUIRED) < min_per_class]
    if not short:
        return
    rows = [f"{classes[i]!r} has {', '.join(f'{counts[name][i]} in {name}' for name in _REQUIRED)}" for i in short]
    more = f"; and {len(short) - _SHOWN} more classes" if len(short) > _SHOWN else ""
    required = f"each class must have at least {min_per_class} in each of train, val and test"
    evidence["classes"] = list(rows)
    found = "; ".join(rows[:_SHOWN]) + more
    raise BadData(f"{required} (prepare_data.min_per_class); {found}: add samples or leave the class out", evidence)
