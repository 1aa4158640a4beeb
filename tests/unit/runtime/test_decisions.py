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


@pytest.mark.parametrize(
    ("later", "chosen", "asked"),
    [
        ([{"a": 1.0, "b": 0.99}], "a", 1),
        ([{"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 1.5}], "a", 2),
        ([{"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 0.8}], "b", 2),
    ],
)
def test_a_gain_must_show_every_time_before_a_former_choice_is_given_up(
    later: list[dict[str, float]], chosen: str, asked: int
) -> None:
    calls: list[dict[str, float]] = []

    def again() -> dict[str, float]:
        calls.append(later[len(calls)])
        return calls[-1]

    assert decisions.stick("s", KEY, {"a": 1.0, "b": 2.0}, VALUES, again) == (VALUES["a"], False)
    assert decisions.stick("s", KEY, {"a": 1.0, "b": 0.95}, VALUES, again) == (VALUES["a"], True)
    assert calls == []
    assert decisions.stick("s", KEY, {"a": 1.0, "b": 0.8}, VALUES, again) == (VALUES[chosen], chosen == "a")
    assert len(calls) == asked


def test_another_device_or_stage_decides_for_itself() -> None:
    decisions.stick("s", KEY, {"a": 1.0, "b": 2.0}, VALUES)
    assert decisions.recall("s", KEY | {"device": "other"}) is None
    assert decisions.recall("t", KEY) is None
