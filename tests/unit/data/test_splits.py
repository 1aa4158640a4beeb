"""Splits: shares, independence of the calibration, duplicates."""

import hashlib

import numpy as np

from stages.data.splits import Splitter, content_hash, count_duplicates

COUNT = 20_000
DIGESTS = np.frombuffer(
    b"".join(hashlib.sha256(i.to_bytes(4, "big")).digest() for i in range(COUNT)), dtype=np.uint8
).reshape(-1, 32)
NONE = np.zeros(COUNT, dtype=bool)


def test_shares_are_met_and_calibration_is_independent_of_the_split() -> None:
    splitter = Splitter(seed=0, val_share=0.15, test_share=0.25, calibration_share=0.2)
    splits = splitter.split(DIGESTS, NONE)
    assert abs(len(splits["val"]) / COUNT - 0.15) < 0.01
    assert abs(len(splits["test"]) / COUNT - 0.25) < 0.01
    assert abs(len(splits["calibration"]) / len(splits["train"]) - 0.2) < 0.015
    position, calibration = splitter.positions(DIGESTS)
    assert abs(np.corrcoef(position, calibration)[0, 1]) < 0.03
    assert 0.0 <= position.min() < position.max() < 1.0


def test_one_sample_is_placed_as_it_is_among_others() -> None:
    splitter = Splitter(seed=3, val_share=0.3, test_share=0.3, calibration_share=0.5)
    splits = splitter.split(DIGESTS, NONE)
    for index in range(50):
        alone = splitter.split(DIGESTS[index : index + 1], NONE[:1])
        assert {name for name, rows in alone.items() if len(rows)} == {
            name for name, rows in splits.items() if index in rows
        }


def test_duplicates_are_counted_by_content() -> None:
    digests = DIGESTS[[0, 1, 0, 2, 0, 3, 1]]
    labels = np.array([5, 6, 5, 7, 9, 8, 6])
    official = np.array([False, False, False, False, False, True, True])
    assert count_duplicates(digests, labels, official) == {"copies": 3, "conflicting": 1, "in_official_test": 1}


def test_the_content_hash_keeps_its_parts_apart() -> None:
    assert content_hash([b"ab", b"c"]) != content_hash([b"a", b"bc"])
    assert content_hash([b"ab", np.arange(3)]) == content_hash([b"ab", np.arange(3)])
