"""What a training takes: waiting for data, steps, memory. It varies: it lies beside the checkpoints, not in history."""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import torch

MIB = 2.0**20
STEP_TIMINGS, EPOCH_TIMINGS = "timings.jsonl", "epoch_timings.jsonl"


class Timings:
    """Adds up the seconds of a block of steps; `write` puts the block's figures down."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder = folder
        self._device = device
        self._process = psutil.Process()
        self._process.cpu_percent()  # The first call only sets the mark from which the next one counts.
        self._begin()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self.waited_s = 0.0
        self._steps = 0
        self._samples = 0

    def step(self, samples: int) -> None:
        """Counts a step."""
        self._steps += 1
        self._samples += samples

    def write(self, step: int) -> None:
        """A row for the steps since the last one, up to `step`."""
        if not self._steps:
            return
        passed = time.perf_counter() - self._started
        row: dict[str, Any] = {
            "step": step,
            "step_ms": round(passed / self._steps * 1000.0, 4),
            "data_wait_ms": round(self.waited_s / self._steps * 1000.0, 4),
            "samples_per_s": round(self._samples / passed, 1),
            "cpu_percent": self._process.cpu_percent(),
            "rss_mib": round(self._process.memory_info().rss / MIB, 1),
        }
        if self._device.type == "cuda":
            row["gpu_mib"] = round(torch.cuda.memory_reserved(self._device) / MIB, 1)
            row["gpu_percent"] = _gpu_percent(self._device)
        self._append(STEP_TIMINGS, row)
        self._begin()

    def epoch(self, epoch: int, seconds: float, samples: int) -> None:
        """A row for an epoch, its validation included."""
        rate = round(samples / seconds, 1) if seconds else None
        self._append(EPOCH_TIMINGS, {"epoch": epoch, "seconds": round(seconds, 4), "samples_per_s": rate})
        self._begin()

    def _append(self, name: str, row: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _gpu_percent(device: torch.device) -> int | None:
    """None where NVIDIA's management library is not installed."""
    try:
        return torch.cuda.utilization(device)
    except (ModuleNotFoundError, RuntimeError):
        return None
