"""Section `resume`: when an unfinished training is continued."""

from stages.config.base import Section


class Resume(Section):
    """An unfinished training with the same fingerprint and the same code is always resumed."""

    across_code: bool = False
    """true: also when the code changed in between; the artifact then says `mixed`."""
