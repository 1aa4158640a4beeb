"""The state of a training under way: position, best score, recoveries; how it is saved, resumed and rolled back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stages.checkpoints import lineage
from stages.checkpoints.background import Saver
from stages.runtime.exits import BadParams
from stages.runtime.progress import say
from stages.training import snapshot
from stages.training.cadence import Cadence
from stages.training.feed import window_ids
from stages.training.history import (
    STEPS,
    History,
    NonFinite,
    Row,
    Step,
    copy_published,
    read_rows,
    require_intact,
)
from stages.training.job import Fitted, Job
from stages.training.machinery import Machinery
from stages.training.outcome import Best, Scored, epoch_row, fitted, history_meta, take
from stages.training.recovery import LOOK_EVERY, Condition, anomaly_around, look_at_norms, only_overflows
from stages.training.starting import starting_point
from stages.training.timings import Timings
from stages.training.watching import after_epoch


@dataclass
class Run:
    """Where a training stands. `epoch` counts from 1; `window` are the epoch's steps that are done, `step` all."""

    job: Job
    parts: Machinery
    history: History
    timings: Timings
    saver: Saver
    condition: Condition
    cadence: Cadence
    best: Best = field(default_factory=Best)
    segments: list[lineage.Segment] = field(default_factory=list)
    epoch: int = 1
    window: int = 0
    step: int = 0
    anchor: int = 0
    """Step of the checkpoint to roll back to: the last one that was due, not one made by a stop."""

    closed: bool = False
    """Its end is saved: nothing more may be."""

    @classmethod
    def start(cls, job: Job) -> "Run":
        """From the newest checkpoint, or from the beginning; then the starting weights are the first checkpoint."""
        saved = starting_point(job)
        parts = Machinery.build(job)
        run = cls(
            job=job,
            parts=parts,
            history=History(job.store.history, len(job.prepared.info.classes), parts.layers.names, job.ranks),
            timings=Timings(job.store.folder, job.device),
            saver=Saver(job.store),
            condition=Condition.start(job.settings, job.micro_batch),
            cadence=Cadence(len(parts.sizes), job.settings.save_every_epochs, job.settings.save_every_steps),
        )
        if saved is not None:
            snapshot.restore(run, saved)
            say(f"{job.name}: goes on after step {run.step} of {parts.total_steps}")
        else:
            run.history.rewind({})
        run.segments.append(lineage.begin(job.store.code, run.step))
        if saved is None:
            run._save_start()
        return run

    def _save_start(self) -> None:
        try:
            self.save()
        except NonFinite:
            raise BadParams(
                f"{self.job.name}: the network's starting weights must be finite, some are NaN or infinite; "
                "mend its initialisation"
            ) from None

    @property
    def goes_on(self) -> bool:
        """False after the last epoch, or when a rule has ended the training."""
        return self.epoch <= self.job.settings.epochs and not self.condition.ended

    def learning_rate(self) -> float:
        """Of the next step: the schedule's at the number of steps taken, times what recoveries have left of it."""
        return self.parts.rate(self.step - self.condition.skipped) * self.condition.lr_factor

    def records_layers(self) -> bool:
        """Whether the layers of the next step are recorded: every so many steps, and around an anomaly."""
        every, number = self.job.settings.layers_every_steps, self.step + 1
        first, last = self.condition.watch_layers
        return every is not None and (number % every == 0 or first <= number <= last)

    def advance(self, record: Step) -> None:
        """Counts a step that is done. Raises `NonFinite` when the block it completes holds a bad one."""
        self.step += 1
        self.window += 1
        self.condition.skipped += record.skipped
        self.history.step(record)
        self.timings.step(record.samples)
        self.saver.poll()
        looks = self.step % LOOK_EVERY == 0
        if looks or len(self.history) >= self.job.settings.log_every_steps:
            self.flush()
        if looks:
            self.condition.look(self.step)
        if self.window < len(self.parts.sizes):  # The epoch's end is saved after its validation.
            when = self.cadence.in_epoch(self.window)
            if when is not None:
                self.save(due=when == "due")

    def flush(self) -> None:
        """Writes what is recorded and looks at it. Raises `NonFinite` where a lost loss is not to be gone on with."""
        rows, lost = self.history.flush(ends_on_nan=self._ends_on_nan)
        for event in look_at_norms(self.condition, self.job.settings, rows):  # Also before a lost loss.
            self._event(event)
        if lost is None and self._ends_on_nan:
            lost = only_overflows(self.condition, rows)
        self.timings.write(self.step)
        self.job.ranks.from_first(self._own_to_a_rank())
        if lost is not None:
            raise lost

    def _own_to_a_rank(self) -> list[Tensor]:
        """BatchNorm's statistics, and what the average holds of them: everything else is the same on all ranks."""
        average = [] if self.parts.average is None else list(self.parts.average.module_state().values())
        return [*self.job.module.buffers(), *average]

    def require_finite_weights(self) -> None:
        """Raises `NonFinite` when weights or running statistics are spoilt, where that is not to be gone on with."""
        if not self._ends_on_nan:
            return
        held: dict[str, Sequence[Tensor]] = {
            "weights": self.parts.parameters,
            "running statistics": self.parts.buffers.to_stay_finite(),
        }
        for name, tensors in held.items():
            if tensors and not _all_finite(tensors):
                raise NonFinite(self.step, self._epoch_of(self.step), f"{name} that are not finite")

    def _epoch_of(self, step: int) -> int:
        return (step - 1) // len(self.parts.sizes) + 1

    @property
    def _ends_on_nan(self) -> bool:
        return self.job.stop_on_nan or self.condition.rollbacks < self.job.settings.recovery.max_rollbacks

    def end_epoch(self, scored: Scored, seconds: float) -> None:
        """Records the epoch, keeps the best, lets the rules look, moves on to the next one, saves."""
        self.condition.look(self.step)
        row = epoch_row(self.epoch, self.step, self.history.sums, scored)
        self.history.epoch(row)
        improved = self.best.takes(scored, self.epoch, self.step)
        self.timings.epoch(self.epoch, seconds, len(self.job.prepared.indices("train")))
        average = "" if scored.average is None else f", of the average {scored.average.accuracy:.2%}"
        say(
            f"{self.job.name}: epoch {self.epoch} of {self.job.settings.epochs}: train loss "
            f"{float(row['train_loss']):.4f}, accuracy {row['train_accuracy']:.2%}; validation loss "
            f"{scored.raw.loss:.4f}, accuracy {scored.raw.accuracy:.2%}{average} ({seconds:.1f} s)"
        )
        for event in after_epoch(self.condition, self.job.settings, scored.better):
            self._event({**event, "step": self.step, "epoch": self.epoch})
        when = "due" if improved else self.cadence.at_end(self.epoch)
        self.epoch, self.window = self.epoch + 1, 0
        if when is not None and self.goes_on:  # The last state is saved by `finish`.
            self.save(due=when == "due")

    def save(self, status: str = "running", reason: str = "", *, due: bool = True, wait: bool = False) -> None:
        """Writes what is recorded, then a checkpoint, in the background unless `wait`.

        Raises `NonFinite` rather than save a bad state. One that is not `due` (a stop asked for it) is no place to
        roll back to: otherwise a resumed run would roll back to another state than an unbroken one.
        """
        self.flush()
        if due:
            self.require_finite_weights()
            self.anchor = self.step
        if self.segments:
            self.segments[-1]["to_step"] = self.step
        self.saver.save(
            self.step,
            snapshot.payload(self),
            snapshot.about(self, status, reason),
            best_step=self.best.step,
            anchor_step=self.anchor,
            due=due or status != "running",
            before=self.history.sync,
            wait=wait or self.cadence.every_step,
        )

    def halve_micro_batch(self, to: int) -> None:
        """After memory ran out: the same windows in smaller micro-batches, for the rest of the training."""
        self.flush()  # So that events come in the order of their steps.
        former, self.condition.micro_batch = self.condition.micro_batch, to
        self.condition.anomaly = True
        what = f"micro-batch {former} did not fit into memory; going on with {to}, the effective batch stays"
        event: Row = {"kind": "out_of_memory", "step": self.step + 1, "epoch": self.epoch, "what": what}
        if self.window == len(self.parts.sizes):  # In the validation, which belongs to no step's samples.
            event |= {"step": self.step, "samples": []}
        self._event(event)

    def roll_back(self, lost: NonFinite) -> bool:
        """Back to the last good checkpoint with half the learning rate; False when the tries are used up."""
        former, most = self.condition, self.job.settings.recovery.max_rollbacks
        if former.rollbacks >= most:
            return False
        self.saver.wait()
        self.job.store.drop_after(self.anchor)  # They do not fit the history any more, which goes back with the run.
        self.parts.optimizer.zero_grad(set_to_none=True)
        snapshot.restore(self, self.job.store.load(self.anchor), keep_events=True)
        for segment in self.segments:  # Steps that are taken again belong to the process that takes them.
            segment.update({name: min(segment[name], self.step) for name in ("from_step", "to_step")})
        self.condition.rollbacks = former.rollbacks + 1
        self.condition.lr_factor = former.lr_factor * 0.5
        self.condition.micro_batch = former.micro_batch
        self.condition.watch_layers = anomaly_around(lost.step)
        what = (
            f"{lost.what}; back to step {self.step}, learning rate times {self.condition.lr_factor:g} from there on "
            f"(rollback {self.condition.rollbacks} of {most})"
        )
        ids = self._ids(lost.epoch, (lost.step - 1) % len(self.parts.sizes))
        self._event({"kind": "rollback", "step": lost.step, "epoch": lost.epoch, "what": what, "samples": ids})
        return True

    def finish(self, status: str, reason: str, *, lost: bool = False) -> Fitted:
        """Publishes the history, marks the run as ended, and leaves the best weights in the module.

        `lost`: the present weights are bad; the best ones are saved in their place. Raises `AlteredHistory`, and
        publishes nothing, where somebody changed what was recorded.
        """
        self.saver.wait()
        require_intact(self.history.folder, self.history.position())
        if lost:
            take(self.job, self.best)
            self.condition.skipped = sum(row["skipped"] for row in read_rows(self.history.folder / STEPS))
        self.history.seal(history_meta(self.job, self.parts, self.best, self.condition, status, reason))
        self.save(status, reason, due=False, wait=True)
        self.closed = True
        copy_published(self.history.folder, self.job.history)
        return fitted(self.job, status, reason, self.best, self.segments, self.condition, reused=False)

    def _event(self, event: Row) -> None:
        self.history.event({"samples": self._ids(event["epoch"], (event["step"] - 1) % len(self.parts.sizes)), **event})
        say(f"{self.job.name}: step {event['step']}: {event['kind'].replace('_', ' ')}: {event['what']}")

    def _ids(self, epoch: int, window: int) -> list[int]:
        ids: list[int] = window_ids(self.job.prepared, self.parts.sizes, self.job.seed, epoch, window).tolist()
        return ids


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    with torch.no_grad():
        return bool(torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all())
