"""Sections `nightly` and `promote`: what they take is what Prefect takes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect.client.schemas.schedules import CronSchedule
from pydantic import ValidationError

from stages.config.nightly import Nightly
from stages.config.promote import Promote

CRONS = [
    "0 2 * * *",
    "*/15 0-6,22 1 1,7 *",
    "0 2 * * MON-FRI",
    "0 2 * JAN sun",
    "0 2 L * *",
    "0 2 * * 7",
    "0 2 * * 5#2",
    "0 0 29 2 *",
    "1/2 * * * *",
]


@pytest.mark.parametrize(
    "cron",
    [
        *CRONS,
        "0 2 LW * *",
        "0 2 * * 5L",
    ],
)
def test_what_cron_takes_prefect_takes(cron: str) -> None:
    try:
        taken = Nightly(cron=cron).cron
    except ValidationError:
        assert cron not in CRONS  # Refused is right, too, for what Prefect refuses.
        return
    assert taken == cron
    assert CronSchedule(cron=cron, timezone="UTC").cron == cron


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("", "must have 5 fields (minute, hour, day, month, weekday), here it has 0"),
        ("@daily", "here it has 1"),
        ("0 2 * *", "here it has 4"),
        ("0 0 2 * * *", "here it has 6"),
        ("60 * * * *", "must be a cron expression (bad minute), for example '0 2 * * *'"),
        ("-1 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 2 0 * *", "bad day-of-month"),
        ("0 2 * 13 *", "bad month"),
        ("0 2 * * 8", "bad day-of-week"),
        ("0 2 * * someday", "bad day-of-week"),
        ("a b c d e", "bad minute"),
        ("0 0 30 2 *", "must"),
        ("0 0 31 4,6,9,11 *", "must"),
    ],
)
def test_a_bad_cron_is_refused(cron: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Nightly(cron=cron)
    (fault,) = caught.value.errors()
    assert fault["loc"] == ("cron",)
    assert said in fault["msg"]


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Asia/Kolkata"])
def test_a_time_zone_that_prefect_takes_too(name: str) -> None:
    assert Nightly(timezone=name).timezone == name
    assert CronSchedule(cron="0 2 * * *", timezone=name).timezone == name


@pytest.mark.parametrize(
    "name", ["", "europe/berlin", "Europe/Atlantis", "+02:00", "UTC ", "../UTC", "/etc/localtime", "Berlin", "CEST"]
)
def test_a_bad_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Nightly(timezone=name)
    (fault,) = caught.value.errors()
    assert fault["loc"] == ("timezone",)
    assert "must be a time zone's name, for example 'Europe/Berlin' or 'UTC'" in fault["msg"]


def test_what_holds_when_nothing_is_said() -> None:
    assert Nightly().model_dump() == {"enabled": True, "cron": "0 2 * * *", "timezone": "UTC", "update_data": True}
    assert Promote().model_dump() == {"metric": "accuracy", "min_gain": 0.0, "automatic": False, "timeout_h": 72.0}


@pytest.mark.parametrize(
    "values",
    [{"min_gain": 0.0}, {"min_gain": 1}, {"metric": "macro_f1"}, {"timeout_h": 0.5}, {"automatic": True}],
    ids=str,
)
def test_promote_takes(values: dict[str, Any]) -> None:
    assert Promote(**values).model_dump() == Promote().model_dump() | values


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (Promote, {"min_gain": -0.001}),
        (Promote, {"min_gain": float("nan")}),
        (Promote, {"min_gain": float("inf")}),
        (Promote, {"min_gain": "0.1"}),
        (Promote, {"min_gain": None}),
        (Promote, {"timeout_h": 0}),
        (Promote, {"timeout_h": -1.0}),
        (Promote, {"timeout_h": float("inf")}),
        (Promote, {"timeout_h": True}),
        (Promote, {"metric": "loss"}),
        (Promote, {"automatic": 1}),
        (Promote, {"automatic": "yes"}),
        (Promote, {"min_gian": 0.1}),
        (Nightly, {"enabled": "false"}),
        (Nightly, {"update_data": 1}),
        (Nightly, {"cron": 5}),
        (Nightly, {"timezone": None}),
        (Nightly, {"time_zone": "UTC"}),
    ],
    ids=[f"case{number}" for number in range(18)],
)
def test_out_of_bounds_wrong_type_or_unknown_is_refused(section: Any, values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ValidationError) as caught:
        section(**values)
    assert [fault["loc"] for fault in caught.value.errors()] == [(name,)]


@pytest.mark.parametrize(
    "hours",
    [
        1e300,
        1e-4,
        0.01,
        24 * 365,
    ],
)
def test_a_timeout_that_is_taken_leaves_a_second_and_fits_a_date(hours: float) -> None:
    try:
        taken = Promote(timeout_h=hours).timeout_h
    except ValidationError:
        return
    seconds = int(taken * 3600)  # As flows/promote.py hands it to Prefect.
    assert seconds >= 1
    assert datetime.now(UTC) + timedelta(seconds=seconds) > datetime.now(UTC)
