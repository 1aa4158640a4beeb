"""What train, distill and prune share before they fit: the checkpoint store, and the micro-batch of the decision."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from stages.checkpoints.dvclock import is_recorded
from stages.checkpoints.fingerprint import fingerprint
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime import identity
from stages.runtime.exits import BadData
from stages.runtime.files import read_json
from stages.runtime.progress import say
from stages.training.device import best_device, key_of

DECISION = "decision.json"


def open_store(
    stage: str,
    *,
    params: Mapping[str, Any],
    prepared: Prepared,
    module: nn.Module,
    micro_batch: int,
    seed: int,
    threads: int,
    inputs: Mapping[str, str] | None = None,
    across_code: bool = False,
) -> Store:
    """The store for this very training, inside a repository with a dvc.yaml that has the stage.

    `params`: the sections as `identifying` gives them. `module` with its starting weights. `inputs`: digests of other
    artifacts that enter (a teacher). A finished run is reused unless dvc.lock records the stage as it stands now: then
    somebody forced it, and wants it trained.
    """
    found = fingerprint(
        params=params,
        data=prepared.info.hash,
        inputs=inputs or {},
        seed=seed,
        threads=threads,
        micro_batch=micro_batch,
        module=module,
    )
    about = {"params": dict(params), "data": prepared.info.hash, "inputs": dict(inputs or {}), "seed": seed}
    return Store(
        stage,
        found,
        identity.code_hash(stage),
        about={**about, "threads": threads},
        across_code=across_code,
        reuse_finished=not is_recorded(stage),
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
