"""Section `nightly`: when the pipeline runs by itself."""

import re
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator

from stages.config.base import Section

_FIELDS = 5
_UNKNOWN_TO_PREFECT = re.compile(r"\dL|LW|\dW", re.IGNORECASE)


def _cron(expression: str) -> str:
    fields = len(expression.split())
    if fields != _FIELDS:
        raise ValueError(f"must have {_FIELDS} fields (minute, hour, day, month, weekday), here it has {fields}")
    if _UNKNOWN_TO_PREFECT.search(expression):
        raise ValueError("must do without 5L, LW and 15W, which Prefect does not know")
    try:
        next(CronSim(expression, datetime.now(UTC)))
    except CronSimError as error:
        raise ValueError(f"must be a cron expression ({str(error).lower()}), for example '0 2 * * *'") from None
    except StopIteration:
        raise ValueError("must name a time that comes, this one never does") from None
    return expression


def _timezone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError("must be a time zone's name, for example 'Europe/Berlin' or 'UTC'")
    return name


class Nightly(Section):
    """The scheduled run that `make serve` offers as `train-to-deploy/nightly`."""

    enabled: bool = True
    """false: no schedule; the run can still be started by hand."""

    cron: Annotated[str, AfterValidator(_cron)] = "0 2 * * *"
    """When it runs: minute, hour, day of the month, month, day of the week."""

    timezone: Annotated[str, AfterValidator(_timezone)] = "UTC"
    """Time zone in which `cron` is read, by its IANA name."""

    update_data: bool = True
    """First bring data that is tracked at its source (`dvc import`, `dvc import-url`) up to date."""
