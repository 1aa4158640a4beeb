"""Saves are so placed that a kill undoes at most one interval, however long a write takes."""

import pytest

from stages.training.cadence import Cadence


def gaps(cadence: Cadence, epochs: int) -> list[int]:
    """Steps at which saves begin; each is on the disk when the next one begins, at the latest."""
    begun, step = [0], 0
    for epoch in range(1, epochs + 1):
        for window in range(1, cadence.epoch_steps + 1):
            step += 1
            saves = cadence.at_end(epoch) if window == cadence.epoch_steps else cadence.in_epoch(window)
            if saves is not None:
                begun.append(step)
    return begun


@pytest.mark.parametrize("epoch_steps", [1, 2, 3, 9, 10, 11, 50])
@pytest.mark.parametrize("epochs", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [None, 1, 2, 3, 4, 7, 60])
def test_what_is_not_on_the_disk_is_at_most_one_interval(epoch_steps: int, epochs: int, steps: int | None) -> None:
    cadence = Cadence(epoch_steps, epochs, steps)
    interval = steps if steps is not None and steps < epoch_steps else epoch_steps * epochs
    begun = gaps(cadence, 12)
    before = 1 if cadence.every_step else 2  # Without a middle a save is waited for.
    assert cadence.every_step == (interval == 1)
    assert max(later - former for former, later in zip(begun, begun[before:], strict=False)) <= interval


def test_those_that_are_due_are_where_the_settings_say() -> None:
    cadence = Cadence(epoch_steps=10, epochs=2, steps=4)
    assert [cadence.in_epoch(window) for window in range(1, 10)] == [
        None, "between", None, "due", None, "between", None, "due", None,
    ]  # fmt: skip
    assert [cadence.at_end(epoch) for epoch in (1, 2, 3, 4)] == ["between", "due", "between", "due"]
    assert [Cadence(3, 3, None).at_end(epoch) for epoch in (1, 2, 3, 4)] == ["between", None, "due", "between"]
