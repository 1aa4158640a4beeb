"""What a loss can do to the loop that calls it: look at the step under way, stop it, spoil it."""

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from stages.runtime import stopping
from stages.runtime.exits import Stopped
from stages.training.fit import fit
from stages.training.history import Step
from stages.training.job import Fitted, Job

Act = Callable[[Step], float]


def loss_that(*acts: Act) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Cross entropy times what every act makes of the step under way, which it reads from the loop's own frame."""

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        step = sys._getframe(1).f_locals["record"]
        return F.cross_entropy(logits, labels) * math.prod([act(step) for act in acts])

    return loss


def stop_in(number: int, when: Callable[[Step], bool] = lambda _: True) -> Act:
    """SIGTERM in the last micro-batch of the step, once."""
    sent = False

    def act(step: Step) -> float:
        nonlocal sent
        if step.step == number and len(step.losses) == len(step.sizes) - 1 and when(step) and not sent:
            sent = True
            os.kill(os.getpid(), signal.SIGTERM)
        return 1.0

    return act


class Killed(BaseException):
    """Ends a training as a kill does: nothing is saved on the way out."""


def killed_in(number: int, when: Callable[[Step], bool] = lambda _: True) -> Act:
    """Raises `Killed` in the first micro-batch of the step, once."""
    done = False

    def act(step: Step) -> float:
        nonlocal done
        if step.step == number and when(step) and not done:
            done = True
            raise Killed
        return 1.0

    return act


def times(factor: float, number: int, above: float = 0.0) -> Act:
    """The loss of one step is multiplied, as long as the learning rate is above the bound."""
    return lambda step: factor if step.step == number and step.lr > above else 1.0


def stopped_and_resumed(make: Callable[[Act], Job], *stops: Act) -> tuple[Job, Fitted]:
    """Runs the job that `make` gives until each stop in turn, then to its end."""
    for stop in stops:
        try:
            fit(make(stop))
        except Stopped:
            stopping._state.requested = False
        else:
            raise AssertionError("it was not stopped")
    job = make(lambda _: 1.0)
    return job, fit(job)


def rows(job: Job, name: str) -> list[dict[str, Any]]:
    """Of a published history file."""
    return [json.loads(line) for line in (job.history / name).read_text().splitlines()]


def meta(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.history / "meta.json").read_text()))


def window(job: Job, step: int) -> list[int]:
    """The samples of a step of a toy job."""
    from stages.training.feed import window_ids
    from stages.training.windows import window_sizes

    sizes = window_sizes(len(job.prepared.indices("train")), job.settings.batch_size)
    epoch, number = divmod(step - 1, len(sizes))
    found: list[int] = window_ids(job.prepared, sizes, job.seed, epoch + 1, number).tolist()
    return found
