"""The one loop: trains a teacher, a student, or a pruned network; stops and resumes at any step, bit for bit."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice

import torch

from stages.runtime import stopping
from stages.runtime.exits import BadParams, Stopped, as_stage_error
from stages.runtime.progress import track
from stages.training.activation_checkpointing import checkpointed
from stages.training.batch_search import smaller
from stages.training.batchnorm import layers
from stages.training.clipping import clip, total_norm
from stages.training.device import seed_step
from stages.training.evaluate import Evaluation, evaluate
from stages.training.feed import Batch, feed
from stages.training.history import NonFinite, Step
from stages.training.job import Fitted, Job, Loss, cross_entropy
from stages.training.memory import is_out_of_memory
from stages.training.outcome import Scored, reuse
from stages.training.run import Run
from stages.training.starting import require_same
from stages.training.windows import micro_sizes

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
    if job.ranks.size > 1:
        require_same(job)
        job.store = job.store.of_rank(job.ranks.rank, job.ranks.size)
    with job.store.locked():
        return reuse(job) or _train(job)


def _train(job: Job) -> Fitted:
    run = Run.start(job)
    with _saved_on_stop(run), checkpointed(job.module, enabled=job.settings.activation_checkpointing):
        while run.goes_on:
            lost: NonFinite | None = None
            try:
                started = time.monotonic()
                _epoch(job, run)
                run.end_epoch(_validate(job, run), time.monotonic() - started)
            except NonFinite as error:
                lost = error
            if lost is not None and not run.roll_back(lost):
                return run.finish("stopped", f"{lost.what} at step {lost.step}", lost=True)
        ended = run.condition.ended
        return run.finish(run.condition.end_status, ended or f"all {job.settings.epochs} epochs")


def _epoch(job: Job, run: Run) -> None:
    """The windows of the epoch that are still to do. Where memory runs out, from that window on with less at a time."""
    loss = job.loss or cross_entropy(job.settings.label_smoothing)
    job.module.train()
    while not _windows(job, run, loss):  # The failed pass is left behind here: what it held is free again.
        _take_less_at_a_time(job, run)
    run.flush()
    run.require_finite_weights()


def _windows(job: Job, run: Run, loss: Loss) -> bool:
    """Takes windows until the epoch's last one; False as soon as memory ran out. Reads no sample that is done."""
    left = range(run.window, len(run.parts.sizes))
    with closing(_stream(job, run)) as stream:
        for window in track(left, f"{job.name}: epoch {run.epoch}, steps"):
            if not _window(job, run, loss, run.parts.sizes[window], stream):
                return False
            if job.ranks.any(stopping.requested())[0]:
                raise stopping.StopRequested
    return True


def _stream(job: Job, run: Run) -> Generator[Batch, None, None]:
    return feed(
        job.prepared,
        run.parts.sizes,
        first_window=run.window,
        epoch=run.epoch,
        seed=job.seed,
        micro_batch=run.condition.micro_batch,
        loader=job.loader,
        augmenter=run.parts.augmenter,
        ranks=job.ranks,
    )


def _window(job: Job, run: Run, loss: Loss, samples: int, stream: Iterator[Batch]) -> bool:
    """One optimizer step on one window. False when memory ran out: then it is as if the window had not begun."""
    seed_step(job.seed, run.step, job.device)
    condition = run.condition
    clip_norm = job.settings.clip_norm if condition.clipping else None
    part = job.ranks.part(samples)
    sizes = micro_sizes(part.stop - part.start, condition.micro_batch)
    record = Step(run.epoch, run.step + 1, run.learning_rate(), clip_norm, sizes, samples)
    run.parts.buffers.keep()
    ran_out = False
    try:
        _gradients(job, run, loss, record, stream)
    except Exception as error:
        ran_out = is_out_of_memory(error)
        if not ran_out:
            raise
    if job.ranks.any(ran_out)[0]:
        run.parts.optimizer.zero_grad(set_to_none=True)
        run.parts.buffers.put_back()
        return False
    job.ranks.sum_gradients(run.parts.parameters)
    _update(run, record)
    return True


def _gradients(job: Job, run: Run, loss: Loss, record: Step, stream: Iterator[Batch]) -> None:
    """Adds up the gradient of the window's mean loss over its micro-batches: that of the window as one batch."""
    precision, forward = run.parts.precision, run.parts.forward
    waited = time.perf_counter()
    for raw, labels in islice(stream, len(record.sizes)):
        run.timings.waited_s += time.perf_counter() - waited
        raw, labels = raw.to(job.device, non_blocking=True), labels.to(job.device, non_blocking=True)
        with _blaming_network(job, len(labels)):
            with precision.forward():
                logits = forward(job.preprocess(raw))
                mean = loss(logits, labels, raw)  # What does not fit the labels is the network's fault too.
            share = len(labels) / record.samples  # Each sample weighs the same.
            precision.backward(mean if share == 1.0 else mean * share)
        record.losses.append(mean.detach())
        record.predicted.append(logits.detach().argmax(dim=1))
        record.labels.append(labels if labels.ndim == 1 else labels.argmax(dim=1))
        waited = time.perf_counter()


def _update(run: Run, record: Step) -> None:
    """Clips, takes the optimizer's step (unless float16 overflowed), and records it."""
    parts, optimizer = run.parts, run.parts.optimizer
    parts.precision.unscale(optimizer)
    grads = [one.grad for one in parts.parameters if one.grad is not None]
    record.grad_norm = total_norm(grads)
    record.skipped = parts.precision.overflowed(record.grad_norm)
    watched = parts.layers if run.records_layers() and not record.skipped else None
    if watched is not None:
        watched.before()
    if not record.skipped:
        if record.clip_norm is not None:
            clip(grads, record.clip_norm, record.grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = record.lr * group["lr_scale"]
        with _blaming_optimizer(run.job):
            optimizer.step()
        if parts.average is not None:
            parts.average.update(run.step + 1 - run.condition.skipped)
    if watched is not None:
        record.layers = watched.after()
    for parameter in parts.parameters:  # `optimizer.zero_grad` does the same, under a profiler's label that takes time.
        parameter.grad = None
    run.advance(record)


def _take_less_at_a_time(job: Job, run: Run) -> None:
    """Half the micro-batch, or the largest divisor of the batch below. Raises `BadParams` when it is one sample."""
    size = run.condition.micro_batch
    less = smaller(job.settings.batch_size, size) if job.settings.recovery.halve_micro_batch else None
    if less is None:
        raise BadParams(
            f"{job.name}: {size} samples do not fit into the memory of {job.device}; lower "
            "find_batch_size.memory_budget_mib or set find_batch_size.fixed_micro_batch, or take a smaller network"
        )
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    run.halve_micro_batch(less)


def _validate(job: Job, run: Run) -> Scored:
    """Of the weights and of their average. Where memory runs out, again with less at a time.

    Several ranks see a stop after it, all of them: else one would save, and wait for those that go on.
    """
    scored = _scored(job, run)
    while job.ranks.any(scored is None)[0] or scored is None:
        _take_less_at_a_time(job, run)
        scored = _scored(job, run)
    if job.ranks.size > 1 and job.ranks.any(stopping.requested())[0]:
        raise stopping.StopRequested
    return scored


def _scored(job: Job, run: Run) -> Scored | None:
    """None when memory ran out."""
    score = partial(
        evaluate,
        job.module,
        job.preprocess,
        job.prepared,
        "val",
        batch_size=run.condition.micro_batch,
        loader=job.loader,
        around=partial(_blaming_network, job),
        stoppable=job.ranks.size == 1,
    )
    average = run.parts.average
    try:
        with average.in_place() if average is not None else nullcontext():
            of_average = score() if average is not None else None
        return Scored(score(), of_average)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


@contextmanager
def _saved_on_stop(run: Run) -> Iterator[None]:
    """A stop is seen only between steps and validation batches; there it saves and ends the stage with 75.

    However it ends, nothing is left half-written: a save in the background is waited for.
    """
    try:
        with stopping.polled():
            try:
                yield
            except stopping.StopRequested:
                with suppress(NonFinite):  # A bad state is not saved; the checkpoint before it is gone on from.
                    if not run.closed:
                        run.save(due=False, wait=True)
                raise Stopped(
                    f"stopped on request after step {run.step} of {run.parts.total_steps}, saved; run again to go on"
                ) from None
    finally:
        run.saver.wait()


@contextmanager
def _blaming_optimizer(job: Job) -> Iterator[None]:
    """Memory that runs out in the step itself: smaller micro-batches win none back, activations are free by then."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise BadParams(
            f"{job.name}: what the optimizer {job.settings.optimizer} keeps beside the weights does not fit into the "
            f"memory of {job.device}, and a smaller micro-batch does not change that; take `optimizer: lion` or `sgd` "
            "(one value a weight where AdamW keeps two), or a smaller network"
        ) from error


@contextmanager
def _blaming_network(job: Job, samples: int) -> Iterator[None]:
    """What the network raises is the user's to mend: one sentence, no traceback. What the system raises stays as is."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or is_out_of_memory(error) or as_stage_error(error) is not None:
            raise
        said = " ".join(str(error).split())[:300]
        if samples == 1 and layers(job.module):
            said += "; BatchNorm cannot take one sample: a larger batch_size, or memory for a larger micro-batch"
        raise BadParams(
            f"{job.name}: the network failed on a batch of {samples}: {type(error).__name__}: {said}"
        ) from error
