"""Source `digits`: 1797 handwritten digits of 8 x 8 pixels (UCI, as in scikit-learn), committed with the project."""

from pathlib import Path

from stages.data.sources.base import InMemory
from stages.data.sources.npz import open_npz


def open_digits(path: Path) -> InMemory:
    """The digits from their npz file. Raises `BadData`."""
    return open_npz(path)
