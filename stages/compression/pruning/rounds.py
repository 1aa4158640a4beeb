"""Prunes in rounds, each fine-tuned, and keeps what every round left."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from stages.compression.pruning.joined_history import join
from stages.compression.pruning.search import Pruned, Rules, Shape, shrink
from stages.config.fit import Fit
from stages.models.counting import Counts
from stages.runtime.progress import say
from stages.training.job import Fitted

FineTune = Callable[[int, nn.Module, Fit, Path], Fitted]
"""(number of the round from 1, pruned module, settings with this round's epochs, folder for its history)."""


@dataclass(frozen=True)
class Round:
    """What one round left: the module with its best weights by validation."""

    pruned: Pruned
    fitted: Fitted


def divide(epochs: int, rounds: int) -> list[int]:
    """Epochs of each round; what does not divide goes to the last ones: 8 over 3 -> [2, 3, 3]."""
    return [epochs * (i + 1) // rounds - epochs * i // rounds for i in range(rounds)]


def bounds(macs: int, target: float, rounds: int) -> list[float]:
    """Most multiply-accumulates after each round: even steps from `macs` down to `target`."""
    return [macs + (target - macs) * (i + 1) / rounds for i in range(rounds)]


def prune_in_rounds(
    module: nn.Module,
    before: Counts,
    input_shape: Shape,
    target: float,
    rules: Rules,
    time_limit_s: float,
    rounds: int,
    settings: Fit,
    fine_tune: FineTune,
    history: Path,
) -> list[Round]:
    """Brings `module` down to `target` multiply-accumulates, or as near as can be, and fine-tunes after each step.

    A round that has nothing to take out (the channels' rounding went ahead of it) leaves its epochs to the next one.
    Ends early when a fine-tuning stops itself. All fine-tunings together become one history.
    """
    done: list[Round] = []
    left_over = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, (bound, epochs) in enumerate(
            zip(bounds(before.macs, target, rounds), divide(settings.epochs, rounds), strict=True), 1
        ):
            pruned = shrink(module, input_shape, bound, rules, time_limit_s)
            left_over += epochs
            if not pruned.kept and number < rounds:
                continue
            say(f"prune: round {number} of {rounds}: {_described(pruned, before)}, {left_over} epochs of fine-tuning")
            folder = Path(scratch) / str(number)
            fitted = fine_tune(number, pruned.module, settings.model_copy(update={"epochs": left_over}), folder)
            done.append(Round(pruned, fitted))
            module, left_over = pruned.module, 0
            if fitted.status != "finished":
                break
        join(sorted(Path(scratch).iterdir(), key=lambda part: int(part.name)), history)
    return done


def _described(pruned: Pruned, before: Counts) -> str:
    thinned = ", ".join(f"{name} {wide} -> {narrow}" for name, (wide, narrow) in pruned.kept.items())
    return f"MACs {pruned.counts.macs / before.macs:.2f}x ({thinned or 'no more channels'})"
