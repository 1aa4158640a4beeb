"""Sticky decisions: a former choice stays unless another is clearly better."""

from pathlib import Path

import pytest

from stages.runtime import decisions

KEY = {"device": "this", "model": "m"}
VALUES = {"a": {"workers": 0}, "b": {"workers": 2}}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path))


def test_the_cheapest_is_chosen_and_kept() -> None:
    assert decisions.stick("s", KEY, {"a": 1.0, "b": 2.0}, VALUES) == (VALUES["a"], False)
    kept = decisions.recall("s", KEY)
    assert kept is not None
    assert kept["choice"] == VALUES["a"]


def test_a_small_gain_changes_nothing_a_large_one_does() -> None:
    decisions.stick("s", KEY, {"a": 1.0, "b": 2.0}, VALUES)
    assert decisions.stick("s", KEY, {"a": 1.0, "b": 0.95}, VALUES) == (VALUES["a"], True)
    assert decisions.stick("s", KEY, {"a": 1.0, "b": 0.85}, VALUES) == (VALUES["b"], False)


def test_another_device_or_stage_decides_for_itself() -> None:
    decisions.stick("s", KEY, {"a": 1.0, "b": 2.0}, VALUES)
    assert decisions.recall("s", KEY | {"device": "other"}) is None
    assert decisions.recall("t", KEY) is None
