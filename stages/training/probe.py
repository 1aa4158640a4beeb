"""`python -m stages.training.probe`: runs training steps in a process of its own and says what memory they took.

One JSON object a line. In: a `Setup`, then micro-batch sizes. Out: device, budget and base, then for each size
`{"fits": true, "peak_mib", "step_ms"}` or `{"fits": false}`; `{"error": sentence}` when the network itself is at fault.
A size that needs more than there is may also end this process: the parent takes its death as "does not fit".
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.nn.functional as F
from torch import nn

from stages.config.fit import Fit
from stages.config.model import Model
from stages.models.preprocess import Preprocess
from stages.models.registry import build
from stages.runtime import seeds
from stages.runtime.exits import BadParams
from stages.training.device import best_device, key_of
from stages.training.memory import budget_mib, is_out_of_memory, peak_mib, reset_peak
from stages.training.optimizers import optimizer
from stages.training.windows import micro_sizes, window_sizes

STEPS = 2
"""Full steps per probe: optimizers allocate their state in the first one."""


@dataclass(frozen=True)
class Setup:
    """What is probed; plain values, so that it goes through JSON."""

    model: dict[str, Any]
    shape: list[int]
    dtype: str
    classes: int
    samples: int
    """Of the train split."""

    batch_size: int
    seed: int
    threads: int
    budget_mib: float | None


def main(requests: TextIO, replies: TextIO) -> None:
    """Answers until the requests end."""
    setup = Setup(**json.loads(requests.readline()))
    seeds.apply(setup.seed, setup.threads)
    device = best_device()
    budget = budget_mib(device, setup.budget_mib)
    base = peak_mib(device)  # Of the process before it has a model.
    _answer(replies, {"device": key_of(device), "budget_mib": budget, "base_mib": base})
    for line in requests:
        try:
            _answer(replies, probe(setup, int(line), device))
        except BadParams as error:
            _answer(replies, {"error": error.sentence})


def probe(setup: Setup, micro_batch: int, device: torch.device) -> dict[str, Any]:
    """Two full steps on the largest batch that training forms; with AdamW, which keeps the most state."""
    module = build(Model(**setup.model), tuple(setup.shape), setup.classes).to(device)
    windows = window_sizes(setup.samples, setup.batch_size)
    largest = max(size for window in windows for size in micro_sizes(window, micro_batch))
    reset_peak(device)
    try:
        step_ms = _steps(setup, module, largest, device)
    except Exception as error:
        if is_out_of_memory(error):
            return {"fits": False}
        said = " ".join(str(error).split())[:300]
        raise BadParams(
            f"the network failed on a batch of {largest} in training: {type(error).__name__}: {said}"
        ) from error
    return {"fits": True, "peak_mib": peak_mib(device), "step_ms": step_ms}


def _steps(setup: Setup, module: nn.Module, samples: int, device: torch.device) -> float:
    channels = setup.shape[-1]
    preprocess = Preprocess([0.0] * channels, [1.0] * channels, 1.0, setup.shape).to(device)
    adamw = optimizer(module.train(), Fit(optimizer="adamw"), total_steps=STEPS)
    raw = torch.zeros((samples, *setup.shape), dtype=getattr(torch, setup.dtype))
    labels = torch.arange(samples) % setup.classes
    step_ms = 0.0
    for _ in range(STEPS):
        started = time.perf_counter()
        loss = F.cross_entropy(module(preprocess(raw.to(device))), labels.to(device))
        torch.autograd.backward(loss)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        loss.item()  # Waits for the device.
        step_ms = (time.perf_counter() - started) * 1000
    return step_ms


def _answer(replies: TextIO, values: Mapping[str, Any]) -> None:
    replies.write(json.dumps(values) + "\n")
    replies.flush()


def _first_to_go() -> None:
    """Where memory runs out, the kernel takes this process rather than another."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000")


if __name__ == "__main__":
    _first_to_go()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # What the user's model prints goes to stderr, not between the answers.
    main(sys.stdin, answers)
