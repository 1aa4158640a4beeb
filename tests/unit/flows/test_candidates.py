"""Bundles that served runs have made, found by digest."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows import candidates
from flows.candidates import Candidate
from flows.ends import Refused
from stages.config.exits import Exit

FIRST = Candidate(
    "12345678aaaa", "c1", "shipway/a-1", "brave-Bär", "2026-01-02T03:04:05+00:00", {"candidate": {"x": 1}}
)
SECOND = replace(FIRST, digest="12345678bbbb", commit="c2", made="2026-01-03T00:00:00+00:00", compared={})
THIRD = replace(FIRST, digest="00000000cccc", commit="c3", made="2025-12-31T00:00:00+00:00")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for one in (SECOND, FIRST, THIRD):
        candidates.keep(tmp_path, one)
    return tmp_path


def test_what_is_kept_is_known_oldest_first(home: Path) -> None:
    assert list(candidates.known(home).values()) == [THIRD, FIRST, SECOND]
    assert list(candidates.known(home)) == [one.digest for one in (THIRD, FIRST, SECOND)]
    assert not [path.name for path in (home / ".shipway" / "candidates").iterdir() if path.suffix != ".json"]


def test_kept_again_it_has_its_new_commit(home: Path) -> None:
    again = replace(THIRD, commit="c9", made="2026-02-01T00:00:00+00:00")
    candidates.keep(home, again)
    assert list(candidates.known(home).values()) == [FIRST, SECOND, again]


def test_the_newest_is_found_without_a_digest(home: Path) -> None:
    assert candidates.find(home, None) == SECOND


@pytest.mark.parametrize("digest", ["12345678aaaa", "12345678aa", "12345678a"])
def test_found_by_its_digest_or_the_start_of_one(home: Path, digest: str) -> None:
    assert candidates.find(home, digest) == FIRST


def test_eight_characters_are_enough(home: Path) -> None:
    assert candidates.find(home, "00000000") == THIRD
    with pytest.raises(Refused, match="fits 0 bundles"):
        candidates.find(home, "0000000")


@pytest.mark.parametrize(
    ("digest", "fits"),
    [("12345678", 2), ("", 0), ("1234567", 0), ("99999999", 0), ("12345678aaaaa", 0), ("../../../x", 0)],
)
def test_none_or_several_are_refused(home: Path, digest: str, fits: int) -> None:
    with pytest.raises(Refused) as caught:
        candidates.find(home, digest)
    assert caught.value.code == Exit.PARAMS
    newest = "00000000cccc, 12345678aaaa, 12345678bbbb"
    said = f"digest {digest!r} fits {fits} bundles of served runs; at least 8 characters of one are needed"
    assert caught.value.sentence == f"{said}; the newest: {newest}"


@pytest.mark.parametrize("digest", [None, "12345678aaaa"])
def test_at_first_there_are_none(tmp_path: Path, digest: str | None) -> None:
    assert candidates.known(tmp_path) == {}
    with pytest.raises(Refused, match="no served run has made a bundle yet; run train-to-deploy/on-demand") as caught:
        candidates.find(tmp_path, digest)
    assert caught.value.code == Exit.PARAMS
