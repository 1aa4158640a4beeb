"""Ten real kills at random moments: the end is that of a training that nobody touched."""

from pathlib import Path

from benchmarks.kill_sweep import SAVE_EVERY_STEPS, sweep


def test_kills_change_nothing(tmp_path: Path) -> None:
    found = sweep(kills=10, seed=3, folder=tmp_path)
    assert found["kills"] == 10
    assert found["exact"], found["different"]
    # An interval; where the disk is so slow that a save is still being written then, up to one more.
    assert found["max_steps_lost"] <= 2 * SAVE_EVERY_STEPS
