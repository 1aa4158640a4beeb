"""The candidate beside production: how much better, in a sentence and in a table."""

from typing import Any

import pytest

from flows.comparison import gain, table, verdict


def rows(
    candidate: float | None, production: float | None = None, *, why: dict[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """As `stages.deployment compare` prints them; `why` where one cannot be scored."""
    found: dict[str, dict[str, Any]] = {"candidate": {"digest": "a" * 64}}
    if candidate is not None:
        found["candidate"] |= {"accuracy": candidate, "macro_f1": candidate - 0.5}
    if production is not None or "production" in (why or {}):
        found["production"] = {"digest": "b" * 64}
    if production is not None:
        found["production"] |= {"accuracy": production, "macro_f1": production}
    for name, sentence in (why or {}).items():
        found[name]["why"] = sentence
    return found


def test_the_gain_is_by_the_metric() -> None:
    assert gain(rows(0.75, 0.5), "accuracy") == 0.25
    assert gain(rows(0.75, 0.5), "macro_f1") == -0.25
    assert gain(rows(0.5, 0.5), "accuracy") == 0.0


def test_there_is_no_gain_over_what_is_not_scored() -> None:
    assert gain(rows(0.75), "accuracy") is None
    assert gain(rows(0.75, why={"production": "another input shape"}), "accuracy") is None


@pytest.mark.parametrize(
    ("found", "metric", "bound", "better", "said"),
    [
        (
            rows(0.75, 0.5),
            "accuracy",
            0.0,
            True,
            "accuracy 0.7500 against 0.5000 in production: +0.2500, above the bound 0",
        ),
        (
            rows(0.75, 0.5),
            "macro_f1",
            0.0,
            False,
            "macro_f1 0.2500 against 0.5000 in production: -0.2500, not above the bound 0",
        ),
        (
            rows(0.5, 0.5),
            "accuracy",
            0.0,
            False,
            "accuracy 0.5000 against 0.5000 in production: +0.0000, not above the bound 0",
        ),
        (
            rows(0.75, 0.5),
            "accuracy",
            0.25,
            False,
            "accuracy 0.7500 against 0.5000 in production: +0.2500, not above the bound 0.25",
        ),
        (
            rows(0.75, 0.5),
            "accuracy",
            0.2,
            True,
            "accuracy 0.7500 against 0.5000 in production: +0.2500, above the bound 0.2",
        ),
        (rows(0.25), "accuracy", 0.5, True, "nothing is in production yet; accuracy of the candidate: 0.2500"),
        (
            rows(0.25, why={"production": "it takes 8x8"}),
            "accuracy",
            0.5,
            True,
            "production cannot take the present data (it takes 8x8); accuracy here: 0.2500",
        ),
        (
            rows(None, why={"candidate": "no labels"}),
            "accuracy",
            0.0,
            False,
            "the candidate cannot be scored: no labels",
        ),
        (
            rows(None, 0.5, why={"candidate": "no labels"}),
            "accuracy",
            0.0,
            False,
            "the candidate cannot be scored: no labels",
        ),
        (rows(None), "accuracy", 0.0, False, "the candidate cannot be scored: no metric"),
        (
            rows(0.5, 0.0),
            "accuracy",
            0.0,
            True,
            "accuracy 0.5000 against 0.0000 in production: +0.5000, above the bound 0",
        ),
        (
            rows(0.0, 0.5),
            "accuracy",
            0.0,
            False,
            "accuracy 0.0000 against 0.5000 in production: -0.5000, not above the bound 0",
        ),
    ],
    ids=[
        "better",
        "worse by the other metric",
        "the same",
        "better by the bound, not by more",
        "better by more than the bound",
        "first",
        "production cannot take the data",
        "candidate not scored",
        "candidate not scored, production is",
        "candidate not scored, no reason",
        "production scored 0",
        "candidate scored 0",
    ],
)
def test_the_verdict(found: Any, metric: str, bound: float, better: bool, said: str) -> None:
    assert verdict(found, metric, bound) == (better, said)


def test_a_gain_of_just_the_bound_is_not_more_than_it() -> None:
    assert verdict(rows(0.91, 0.9), "accuracy", 0.01)[0] is False


def test_the_table_shows_both() -> None:
    candidate = {
        "digest": "0123456789abcdef",
        "accuracy": 0.96875,
        "macro_f1": 0.5,
        "size_kib": 123.25,
        "p50_ms": 0.125,
        "p95_ms": 1,
        "samples": 270,
        "not shown": 1,
    }
    assert table({"candidate": candidate, "production": {"digest": "f" * 64, "why": "x"}}).splitlines() == [
        "| | candidate | production |",
        "|---|---|---|",
        "| digest | 0123456789ab | ffffffffffff |",
        "| accuracy | 0.96875 | - |",
        "| macro_f1 | 0.5 | - |",
        "| size_kib | 123.25 | - |",
        "| p50_ms | 0.125 | - |",
        "| samples | 270 | - |",
    ]


def test_the_table_of_the_first() -> None:
    lines = table(rows(0.0)).splitlines()
    assert lines[:2] == ["| | candidate |", "|---|---|"]
    assert {"| accuracy | 0 |", "| macro_f1 | -0.5 |", "| samples | - |"} <= set(lines)


def test_the_table_shows_large_numbers_in_full() -> None:
    assert "| samples | 10000 |" in table({"candidate": {"samples": 10000}})
