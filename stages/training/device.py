"""Where training runs, and its random state."""

import random
from typing import Any

import numpy as np
import torch

from stages.runtime import decisions
from stages.runtime.seeds import derive


def best_device() -> torch.device:
    """The GPU where torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def key_of(device: torch.device) -> dict[str, Any]:
    """What a decision about this device is kept under and carries: kind, processor, cores, GPU."""
    return {"kind": device.type, **decisions.device_key()}


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Seeds torch, numpy and random from (seed, step) before a step.

    So dropout and the like depend on the step alone: a resumed run draws what the unbroken one drew, and no random
    state has to be stored. (`torch.manual_seed` costs 0.2 ms a call where CUDA is absent; the generator's own takes
    a microsecond.)
    """
    derived = derive(seed, "step", step)
    torch.default_generator.manual_seed(derived)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)
