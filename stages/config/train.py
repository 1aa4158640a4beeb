"""Section `train`: the teacher's training."""

from typing import Literal

from stages.config.fit import Fit


class Train(Fit):
    """The teacher's training: the settings of `Fit`, and when it stops itself."""

    stop_on: list[Literal["nan"]] = ["nan"]
    """Verdicts that end the training early (exit 0, status `stopped`); the gate `diagnose@train` then fails."""
