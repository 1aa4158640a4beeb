"""What a training works with: made once from the job, the same whether it starts or resumes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stages.data.augment import Augmenter
from stages.runtime.exits import BadParams
from stages.runtime.progress import say
from stages.training.activation_checkpointing import checkpointed
from stages.training.batchnorm import Buffers, layers
from stages.training.compiling import Forward, forward_of
from stages.training.ema import Average
from stages.training.job import Job
from stages.training.layers import Layers
from stages.training.optimizers import Choice, choose, optimizer
from stages.training.precision import Precision, slowdown
from stages.training.schedule import learning_rate
from stages.training.windows import window_sizes

CLEARLY_SLOWER = 1.1


@dataclass(frozen=True)
class Machinery:
    """The parts that the loop drives. Those that are switched off are None."""

    optimizer: torch.optim.Optimizer
    choice: Choice
    parameters: list[nn.Parameter]
    precision: Precision
    average: Average | None
    layers: Layers
    buffers: Buffers
    forward: Forward
    augmenter: Augmenter | None
    state_names: frozenset[str]
    """Of the weights and buffers that the network starts with."""

    sizes: list[int]
    """Samples of each window of an epoch."""

    total_steps: int
    rate: Callable[[int], float]
    """Base learning rate by number of steps taken."""

    @classmethod
    def build(cls, job: Job) -> "Machinery":
        """Raises `BadParams` where settings and network or data do not fit together."""
        settings, module, info = job.settings, job.module, job.prepared.info
        _require_real(job)
        train = job.prepared.indices("train")
        sizes = window_sizes(len(train), settings.batch_size)
        total = settings.epochs * len(sizes)
        _require_effect(job, total)
        augmenter = None if settings.augment is None else Augmenter(settings.augment, info.shape, job.seed, train)
        if settings.precision != "none":
            _say_if_slower(job)
        with checkpointed(module, enabled=settings.activation_checkpointing):  # The trial is of what will be trained.
            forward = forward_of(module, _example(job) if settings.compile else None)
        return cls(
            optimizer=optimizer(module, settings, total),
            choice=choose(module, settings),
            parameters=[parameter for parameter in module.parameters() if parameter.requires_grad],
            precision=Precision(settings.precision, job.device),
            average=None if settings.ema is None else Average(module, settings.ema),
            layers=Layers(module),
            buffers=Buffers(module),
            forward=forward,
            augmenter=augmenter,
            state_names=frozenset(module.state_dict()),
            sizes=sizes,
            total_steps=total,
            rate=learning_rate(settings, total),
        )


def _require_real(job: Job) -> None:
    unreal = [name for name, weight in job.module.named_parameters() if weight.is_complex()]
    if unreal:
        raise BadParams(f"{job.name}: the network's weights must be real numbers, {unreal[0]} is complex")


def _require_effect(job: Job, total_steps: int) -> None:
    """Raises `BadParams` for settings that would do nothing for this network and this many steps."""
    settings = job.settings
    if settings.reestimate_batchnorm and not layers(job.module):
        raise BadParams(f"{job.name}: the network has no BatchNorm; set reestimate_batchnorm to false")
    if settings.ema is not None and settings.ema.start_step >= total_steps:
        raise BadParams(f"{job.name}: ema.start_step must be below the {total_steps} steps of the training")
    if settings.cycles is not None and settings.cycles > total_steps:
        raise BadParams(f"{job.name}: cycles must be at most the {total_steps} steps of the training")
    if settings.switch_share is not None and not 0 < round(total_steps * settings.switch_share) < total_steps:
        raise BadParams(
            f"{job.name}: switch_share {settings.switch_share:g} leaves one of the two optimizers none of the "
            f"{total_steps} steps; choose one between, or train with the other alone"
        )
    if not settings.clip and settings.recovery.clip_after_steps > total_steps:
        raise BadParams(
            f"{job.name}: recovery.clip_after_steps must be at most the {total_steps} steps of the training, or "
            f"clipping is never switched on; got {settings.recovery.clip_after_steps}"
        )


def _example(job: Job) -> Tensor:
    """The first micro-batch, normalised, on the device."""
    first = np.asarray(job.prepared.indices("train")[: job.micro_batch])
    with torch.no_grad():
        inputs: Tensor = job.preprocess(torch.from_numpy(job.prepared.read(first)).to(job.device))
    return inputs


def _say_if_slower(job: Job) -> None:
    name = job.settings.precision
    try:
        ratio = slowdown(name, job.module, _example(job), len(job.prepared.info.classes))
    except Exception as error:  # The training says it better: whose fault it is, or with less at a time.
        say(f"{job.name}: the speed of {name} could not be measured ({type(error).__name__})")
        return
    verdict = f"warning: slower; precision: none is the better choice on {job.device}" if ratio > CLEARLY_SLOWER else ""
    say(f"{job.name}: {name} takes {ratio:.2f} times the time of float32{f' ({verdict})' if verdict else ''}")
