"""What train, distill and prune share before they fit: the job, with its checkpoint store and micro-batch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from stages.checkpoints.dvclock import is_recorded
from stages.checkpoints.fingerprint import fingerprint
from stages.checkpoints.store import Store
from stages.config.fit import Fit
from stages.data.loaders import loader_settings
from stages.data.prepared import Prepared
from stages.models.preprocess import Preprocess
from stages.runtime import identity
from stages.runtime.exits import BadData
from stages.runtime.files import read_json
from stages.runtime.progress import say
from stages.training.device import best_device, key_of
from stages.training.job import Job

DECISION = "decision.json"


def open_job(
    stage: str,
    module: nn.Module,
    settings: Fit,
    *,
    params: Mapping[str, Any],
    prepared: Prepared,
    decision: Path,
    history: Path,
    seed: int,
    threads: int,
    across_code: bool,
    inputs: Mapping[str, str] | None = None,
) -> Job:
    """The training of `module` (with its starting weights) in a stage, inside a repository with a dvc.yaml that has it.

    `params`: the sections that the training is made of, as `identifying` gives them. `decision`: the folder that
    `find_batch_size` left. `inputs`: digests of other artifacts that enter (a teacher). A finished run is reused unless
    dvc.lock records the stage as it stands now: then somebody forced it, and wants it trained.
    """
    size = micro_batch(decision, settings.batch_size)
    about: dict[str, Any] = {
        "params": dict(params),
        "data": prepared.info.hash,
        "inputs": dict(inputs or {}),
        "seed": seed,
        "threads": threads,
    }
    store = Store(
        stage,
        fingerprint(**about, micro_batch=size, module=module),
        identity.code_hash(stage),
        about=about,
        across_code=across_code,
        reuse_finished=not is_recorded(stage),
    )
    info = prepared.info
    return Job(
        name=stage,
        module=module,
        preprocess=Preprocess(info.mean, info.std, info.scale, info.shape),
        prepared=prepared,
        settings=settings,
        micro_batch=size,
        seed=seed,
        store=store,
        history=history,
        loader=loader_settings(prepared),
    )


def micro_batch(decision: Path, batch_size: int) -> int:
    """Samples per forward pass for this effective batch, from the folder that `find_batch_size` left.

    The largest divisor of `batch_size` that is not above the decision's micro-batch: what was tried there fits, and so
    does anything smaller. Says so when the decision was made on another device. Raises `BadData` when it cannot be
    read.
    """
    path = decision / DECISION
    try:
        made = read_json(path)
        largest, device = int(made["micro_batch"]), made["device"]
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise BadData(f"{path} cannot be read ({error!r}); run `shipway run find_batch_size` again") from None
    if device is not None and device != key_of(best_device()):
        say(
            f"warning: micro-batch {largest} was found on another device; `shipway run find_batch_size --force` "
            "finds it anew for this one"
        )
    return max(size for size in range(1, min(largest, batch_size) + 1) if batch_size % size == 0)
