"""What a checkpoint holds of a training, and how it is put back."""

import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stages.checkpoints.files import Saved
from stages.runtime.exits import BadParams
from stages.training.history import Sums
from stages.training.outcome import Best
from stages.training.recovery import Condition

if TYPE_CHECKING:
    from stages.training.run import Run


def payload(run: "Run") -> dict[str, Any]:
    """Tensors and plain values: weights, optimizer, loss scale, moving average, position, recoveries."""
    parts, sums = run.parts, run.history.sums
    state = run.job.module.state_dict()
    require_same_state(run, set(state))
    return {
        "module": state,
        "unsaved_buffers": unsaved_buffers(run.job.module),
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


def unsaved_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that a state dict leaves out (`persistent=False`); training may change them all the same."""
    held = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in held}


def require_same_state(run: "Run", names: set[str]) -> None:
    """Raises `BadParams` when training has added or removed weights or buffers: it could not be resumed."""
    changed = sorted(names ^ run.parts.state_names)
    if changed:
        raise BadParams(
            f"{run.job.name}: weights and buffers must all be there from the start; {', '.join(changed[:3])} came or "
            "went in training: register them in __init__"
        )


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
    with torch.no_grad():
        for name, buffer in unsaved_buffers(run.job.module).items():
            buffer.copy_(saved.payload["unsaved_buffers"][name])
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
