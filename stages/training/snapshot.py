"""What a checkpoint holds of a training, and how it is put back."""

import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stages.checkpoints.store import Saved
from stages.training.history import Sums
from stages.training.outcome import Best
from stages.training.recovery import Condition

if TYPE_CHECKING:
    from stages.training.run import Run


def payload(run: "Run") -> dict[str, Any]:
    """Tensors and plain values: weights, optimizer, loss scale, moving average, position, recoveries."""
    parts, sums = run.parts, run.history.sums
    return {
        "module": run.job.module.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "precision": parts.precision.state_dict(),
        "average": None if parts.average is None else parts.average.state_dict(),
        "progress": {
            "epoch": run.epoch,
            "window": run.window,
            "loss_sum": sums.loss,
            "confusion": sums.confusion,
            "position": run.history.position(),
            "condition": run.condition.as_dict(),
        },
    }


def about(run: "Run", status: str, reason: str) -> dict[str, Any]:
    """What the checkpoint says of itself, beside what the store adds."""
    return {
        "status": status,
        "reason": reason,
        "epoch": min(run.epoch, run.job.settings.epochs),
        "total_steps": run.parts.total_steps,
        "micro_batch": run.condition.micro_batch,
        "device": str(run.job.device),
        "best": asdict(run.best),
        "lineage": copy.deepcopy(run.segments),
    }


def restore(run: "Run", saved: Saved, *, keep_events: bool = False) -> None:
    """Puts everything back as it was saved. With `keep_events` (a rollback) the events and the lineage go on."""
    progress, told, parts = saved.payload["progress"], saved.meta, run.parts
    run.job.module.load_state_dict(saved.payload["module"])
    parts.optimizer.load_state_dict(copy.deepcopy(saved.payload["optimizer"]))  # Out of the mapped file.
    parts.precision.load_state_dict(saved.payload["precision"])
    if parts.average is not None:
        parts.average.load_state_dict(saved.payload["average"])
    run.epoch, run.window, run.step = progress["epoch"], progress["window"], saved.step
    run.history.sums = Sums(run.history.classes, progress["loss_sum"], progress["confusion"].clone())
    run.history.rewind(progress["position"], keep_events=keep_events)
    run.condition = Condition.from_dict(progress["condition"])
    run.best = Best.from_dict(told["best"])
    run.anchor = saved.anchor_step
    if not keep_events:
        run.segments = list(told["lineage"])
