"""Section `paths`: places outside the repository."""

from typing import Annotated

from pydantic import Field

from stages.config.base import Section


class Paths(Section):
    """Places outside the repository."""

    production: Annotated[str, Field(min_length=1)] = "../shipway-production"
    """Folder to which `shipway release` copies a bundle when no destination is given."""
