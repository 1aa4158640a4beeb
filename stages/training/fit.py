"""The one loop: trains a teacher, a student, or a pruned network; stops and resumes at any step, bit for bit."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stages.data.loaders import batches, epoch_order
from stages.runtime import stopping
from stages.runtime.exits import BadParams, Stopped, as_stage_error
from stages.runtime.progress import track
from stages.training.device import seed_step
from stages.training.evaluate import Evaluation, evaluate
from stages.training.history import NonFinite, Step
from stages.training.job import Fitted, Job, Loss, cross_entropy
from stages.training.run import Run, reuse
from stages.training.schedule import warmup_cosine
from stages.training.windows import Batch, join_single, window_sizes

__all__ = ["Evaluation", "Fitted", "Job", "Loss", "fit"]


def fit(job: Job) -> Fitted:
    """Trains `job.module` in place; afterwards it holds the best weights by validation accuracy, in evaluation mode.

    Goes on from the newest checkpoint in `job.store`, or takes the result of a finished run. Asked to stop (SIGTERM,
    SIGINT), it finishes the step, saves and raises `Stopped`. Raises `BadParams` when the network itself fails.
    """
    if job.settings.batch_size % job.micro_batch:
        raise BadParams(f"micro-batch {job.micro_batch} must divide batch_size {job.settings.batch_size}")
    job.module.to(job.device)
    job.preprocess.to(job.device)
    with job.store.locked():
        return reuse(job) or _train(job)


def _train(job: Job) -> Fitted:
    samples = len(job.prepared.indices("train"))
    plan = window_sizes(samples, job.settings.batch_size, job.micro_batch)
    run = Run.start(job, steps_per_epoch=len(plan))
    loss = job.loss or cross_entropy(job.settings.label_smoothing)
    try:
        with _saved_on_stop(run):
            while run.epoch <= job.settings.epochs:
                started, step_before = time.monotonic(), run.step
                _steps(job, run, plan, loss)
                run.end_epoch(_validate(job), time.monotonic() - started, run.step - step_before)
    except NonFinite as error:
        return run.finish("stopped", f"{error.what} at step {error.step}")
    return run.finish("finished", f"all {job.settings.epochs} epochs")


def _steps(job: Job, run: Run, plan: list[list[int]], loss: Loss) -> None:
    """The optimizer steps of the epoch that are still to do; of the samples that are done none is read."""
    left = plan[run.window :]
    order = epoch_order(job.prepared.indices("train"), job.seed, run.epoch)[run.window * job.settings.batch_size :]
    job.module.train()
    with closing(join_single(batches(job.prepared, order, job.micro_batch, job.loader), job.micro_batch)) as stream:
        for sizes in track(left, f"{job.name}: epoch {run.epoch}, steps", total=len(left)):
            _step(job, run, loss, sizes, stream)
            if stopping.requested():
                raise stopping.StopRequested
    run.history.flush()


def _step(job: Job, run: Run, loss: Loss, sizes: list[int], stream: Iterator[Batch]) -> None:
    """One optimizer step on one window of micro-batches: its gradient is that of the window as one batch."""
    lr = warmup_cosine(run.step, run.total_steps, run.warmup_steps, job.settings.lr)
    seed_step(job.seed, run.step, job.device)
    record = Step(run.epoch, run.step + 1, lr, sizes)
    samples = sum(sizes)
    for raw, labels in islice(stream, len(sizes)):
        raw, labels = raw.to(job.device, non_blocking=True), labels.to(job.device, non_blocking=True)
        with _blaming_network(job, len(labels)):
            logits = job.module(job.preprocess(raw))
            mean = loss(logits, labels, raw)  # What does not fit the labels is the network's fault too.
            torch.autograd.backward(mean * (len(labels) / samples))  # Each sample weighs the same in the window's mean.
        record.losses.append(mean.detach())
        record.correct.append((logits.detach().argmax(dim=1) == labels).sum())
    record.grad_norm = _clip(run, job.settings.clip_norm)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    run.advance(record)


def _clip(run: Run, clip_norm: float | None) -> torch.Tensor:
    """The total gradient norm before clipping, left on the device."""
    gradients = [parameter.grad for parameter in run.parameters if parameter.grad is not None]
    norm = get_total_norm(gradients)
    if clip_norm is not None:
        clip_grads_with_norm_(run.parameters, clip_norm, norm)
    return norm


def _validate(job: Job) -> Evaluation:
    return evaluate(
        job.module,
        job.preprocess,
        job.prepared,
        "val",
        batch_size=job.micro_batch,
        loader=job.loader,
        around=partial(_blaming_network, job),
    )


@contextmanager
def _saved_on_stop(run: Run) -> Iterator[None]:
    """A stop is seen only between steps and validation batches; there it saves and ends the stage with 75."""
    with stopping.polled():
        try:
            yield
        except stopping.StopRequested:
            run.save()
            raise Stopped(
                f"stopped on request after step {run.step} of {run.total_steps}, saved; run again to go on"
            ) from None


@contextmanager
def _blaming_network(job: Job, samples: int) -> Iterator[None]:
    """What the network raises is the user's to mend: one sentence, no traceback. What the system raises stays as is."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BadParams(
            f"{job.name}: {samples} samples do not fit into the memory of {job.device}; lower "
            "find_batch_size.memory_budget_mib or set find_batch_size.fixed_micro_batch"
        ) from error
    except Exception as error:
        if isinstance(error, OSError) or as_stage_error(error) is not None:
            raise
        said = " ".join(str(error).split())[:300]
        raise BadParams(
            f"{job.name}: the network failed on a batch of {samples}: {type(error).__name__}: {said}"
        ) from error
