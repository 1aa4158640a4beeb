"""Section `promote`: which bundle goes into production, and who says so."""

from typing import Annotated, Literal

from pydantic import Field

from stages.config.base import NotNegative, Section


class Promote(Section):
    """A nightly run whose bundle beats the one in production asks for approval."""

    metric: Literal["accuracy", "macro_f1"] = "accuracy"
    """What the two are compared by, on the present test split."""

    min_gain: NotNegative = 0.0
    """The candidate must be better by more than this (0.01 is one point)."""

    automatic: bool = False
    """true: a candidate that is better by the bound is promoted without asking."""

    timeout_h: Annotated[float, Field(ge=0.01, le=8760.0)] = 72.0
    """Hours after which a question that nobody answers leaves production as it is."""
