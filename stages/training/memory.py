"""Memory of the training's device: what there is, and the peak that was used."""

import resource
import sys
from pathlib import Path

import psutil
import torch

from stages.runtime.exits import MEMORY_WORDS

MIB = 2.0**20
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def budget_mib(device: torch.device, wanted: float | None) -> float:
    """What may be used, in MiB: `wanted`, or else the device's free memory (CPU: under a container's limit)."""
    if wanted is not None:
        return wanted
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / MIB
    limits = [path.read_text().strip() for path in _CGROUP_LIMITS if path.is_file()]
    return min([psutil.virtual_memory().available, *(int(limit) for limit in limits if limit.isdigit())]) / MIB


def peak_mib(device: torch.device) -> float:
    """Peak since `reset_peak`: on a GPU what torch reserved there, on a CPU the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / MIB
    if _STATUS.is_file():  # ru_maxrss begins with what the parent had when it started this process.
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


def reset_peak(device: torch.device) -> None:
    """Forgets former peaks, where the system can."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR_REFS.is_file():
        try:
            _CLEAR_REFS.write_text("5")
        except OSError:  # Not permitted in some containers: a former, larger probe then still counts.
            return


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device's or the process's memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in MEMORY_WORDS)
