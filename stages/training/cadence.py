"""When a training saves."""

from dataclasses import dataclass
from typing import Literal

When = Literal["due", "between"]


@dataclass(frozen=True)
class Cadence:
    """Saves so placed that a kill undoes at most one interval, although they are written in the background.

    A save waits for the one before it. So what is not on the disk yet is at most two gaps between saves, and one more
    save in the middle of each interval makes two gaps one interval. Those are no places to roll back to.
    """

    epoch_steps: int
    epochs: int
    steps: int | None
    """Also inside an epoch after so many steps; without effect where an epoch has no more than that."""

    def in_epoch(self, window: int) -> When | None:
        """After so many steps of an epoch (1 to `epoch_steps` - 1)."""
        inside = self._inside
        if inside is None:
            return "between" if self.epochs == 1 and window == self.epoch_steps // 2 else None
        if window % inside == 0:
            return "due"
        return "between" if window % inside == inside // 2 else None

    def at_end(self, epoch: int) -> When | None:
        """After the validation of this epoch (from 1)."""
        if epoch % self.epochs == 0:
            return "due"
        return "between" if self._inside is not None or epoch % self.epochs == self.epochs // 2 else None

    @property
    def every_step(self) -> bool:
        """There is no middle: each save has to be on the disk before the next step."""
        return (self._inside or self.epoch_steps * self.epochs) == 1

    @property
    def _inside(self) -> int | None:
        return self.steps if self.steps is not None and self.steps < self.epoch_steps else None
