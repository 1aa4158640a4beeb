"""Splits by fixed thresholds on hash(seed, content): new data never moves an old sample, copies stay together."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data.prepared import Indices
from stages.runtime.seeds import derive

Digests = npt.NDArray[np.uint8]
"""SHA-256 of each sample's content, (N, 32); the label is no part of it."""


@dataclass(frozen=True)
class Splitter:
    """Where a sample belongs, from its content alone."""

    seed: int
    val_share: float
    test_share: float
    calibration_share: float

    def positions(self, digests: Digests) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Two independent uniform positions in [0, 1) per sample: for the split, and for the calibration."""
        prefix = derive(self.seed, "split").to_bytes(8, "big")
        mixed = b"".join(hashlib.sha256(prefix + digest.tobytes()).digest()[:16] for digest in digests)
        drawn = np.frombuffer(mixed, dtype=">u8").reshape(-1, 2).astype(np.uint64)
        uniform = (drawn >> np.uint64(11)).astype(np.float64) / float(2**53)  # 53 bits: exact in float64.
        return uniform[:, 0], uniform[:, 1]

    def split(self, digests: Digests, official_test: npt.NDArray[np.bool_]) -> dict[str, Indices]:
        """Sample indices of train, val, test and calibration (a part of train), ascending.

        With an official test set, that is the test split, and `test_share` is not used; copies of its samples are in
        no split.
        """
        position, calibration = self.positions(digests)
        test_share = 0.0 if official_test.any() else self.test_share
        test = official_test | (position < test_share)
        val = ~test & (position < test_share + self.val_share)
        leaked = leaks(digests, official_test)
        val, train = val & ~leaked, ~test & ~val & ~leaked
        masks = {
            "train": train,
            "val": val,
            "test": test,
            "calibration": train & (calibration < self.calibration_share),
        }
        return {name: np.flatnonzero(mask).astype(np.int64) for name, mask in masks.items()}


def leaks(digests: Digests, official_test: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Samples outside the official test set whose content also occurs in it, (N,)."""
    _, which = np.unique(_keys(digests), return_inverse=True)
    in_test = np.zeros(len(digests), dtype=bool)
    in_test[which[official_test]] = True
    found: npt.NDArray[np.bool_] = in_test[which] & ~official_test
    return found


def _keys(digests: Digests) -> npt.NDArray[np.void]:
    """(N, 32) bytes as (N,) comparable values."""
    return np.ascontiguousarray(digests).view("V32").ravel()


def count_duplicates(
    digests: Digests, labels: npt.NDArray[np.int64], official_test: npt.NDArray[np.bool_]
) -> dict[str, int]:
    """Exact duplicates: `copies`, `conflicting` and `in_official_test` as in `Info.duplicates`."""
    keys = _keys(digests)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    is_copy = np.ones(len(keys), dtype=bool)
    is_copy[first] = False
    return {
        "copies": int(is_copy.sum()),
        "conflicting": int((labels != labels[first][which]).sum()),
        "in_official_test": int(leaks(digests, official_test).sum()),
    }


def content_hash(parts: Sequence[bytes | npt.NDArray[Any]]) -> str:
    """Hex SHA-256 over parts, each preceded by its length."""
    total = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes()
        total.update(len(content).to_bytes(8, "big"))
        total.update(content)
    return total.hexdigest()
