"""One rank of a training of several: `python -m tests.unit.training.ranked FOLDER RANK SIZE KIND`.

KIND: `plain`; `short`: rank 1 has no memory for more than three samples; `hangs`: rank 1 stops answering in step 3;
`stopped`: rank 0 is asked to stop in its first validation; `last`: in the last step before it; `differs`: rank 1 has
another learning rate.
Ends as a stage does (0; 75 when stopped, or when another rank is gone).
"""

import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from stages.data.prepared import Prepared
from stages.runtime import seeds, stopping
from stages.runtime.exits import StageError
from stages.training.fit import fit
from stages.training.windows import window_sizes
from tests.unit.training import toy

DEADLINE = datetime.timedelta(seconds=15)


class Short(nn.Module):
    """Runs out of memory on a rank, for more than three samples in training."""

    def __init__(self, inner: nn.Module, rank: int) -> None:
        super().__init__()
        self.inner = inner
        self.rank = rank

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and self.rank == 1 and len(rows) > 3:
            raise torch.OutOfMemoryError("no memory for more than three samples")
        return self.inner(rows)


class AskedToStop(nn.Module):
    """Is asked to stop on rank 0 as soon as it is evaluated."""

    def __init__(self, inner: nn.Module, rank: int) -> None:
        super().__init__()
        self.inner = inner
        self.rank = rank

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training and self.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.inner(rows)


def network() -> nn.Module:
    """Without BatchNorm and dropout: samples do not meet, so ranks change nothing but rounding."""
    seeds.apply(0, 1)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, toy.CLASSES))


def main(folder: Path, rank: int, size: int, kind: str) -> None:
    """Trains as one of `size` ranks; leaves `result-RANK.json`."""
    stopping.install()
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting-{kind}", rank=rank, world_size=size, timeout=DEADLINE
    )
    calls = 0

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if kind == "hangs" and rank == 1 and calls == 3:
            time.sleep(600)
        if kind == "slow":
            time.sleep(0.05)
        if kind == "last" and rank == 0 and calls == len(windows):
            os.kill(os.getpid(), signal.SIGTERM)
        return F.cross_entropy(logits, labels)

    around = {"short": Short, "stopped": AskedToStop}.get(kind)
    module = network() if around is None else around(network(), rank)
    prepared = Prepared.open(folder / "data")
    windows = window_sizes(len(prepared.indices("train")), 8)  # One micro-batch of each is this rank's.
    job = toy.job(folder, prepared, module, loss=loss, history=folder / f"history-{rank}")
    if kind == "differs" and rank == 1:
        job.settings = job.settings.model_copy(update={"lr": 0.5})
    try:
        fitted = fit(job)
    except StageError as error:
        print(error.sentence, flush=True)
        sys.stdout.flush()
        # Not sys.exit: a group whose other member is gone would be waited for at the interpreter's end.
        os._exit(int(error.code))
    done = {**toy.result(job), "micro_batch": fitted.micro_batch, "accuracy": fitted.val.accuracy}
    (folder / f"result-{rank}.json").write_text(json.dumps(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
