"""Mixed precision: autocast for the forward pass, and loss scaling where float16 needs it."""

import copy
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Name = Literal["none", "bf16", "fp16"]
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_REPEATS = 4


class Precision:
    """How the forward pass computes. Weights, gradients and validation stay float32 (Micikevicius et al. 2018)."""

    def __init__(self, name: Name, device: torch.device) -> None:
        self.name = name
        self._device = device.type
        self._unscaled = False
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def forward(self) -> AbstractContextManager[Any]:
        """Around the forward pass and the loss."""
        if self.name == "none":
            return nullcontext()
        return torch.autocast(self._device, dtype=_TYPES[self.name])

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of a (scaled) scalar loss."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the scale: before anything reads or clips them."""
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        self._unscaled = self._scaler is not None and any(weight.grad is not None for weight in weights)
        if self._scaler is not None and self._unscaled:
            self._scaler.unscale_(optimizer)

    def overflowed(self, grad_norm: Tensor) -> bool:
        """With float16, whether this step must be skipped; adapts the scale. Waits for the device, in float16 alone."""
        if self._scaler is None or not self._unscaled:  # torch's scaler fails where no gradient came.
            return False
        self._scaler.update()
        return not bool(torch.isfinite(grad_norm))

    def state_dict(self) -> dict[str, Any]:
        """Scale and growth counter; empty where nothing is scaled."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a saved scale and counter back."""
        if self._scaler is not None:
            self._scaler.load_state_dict(state)


def slowdown(name: Name, module: nn.Module, inputs: Tensor, classes: int) -> float:
    """Time of a training pass in this precision over its time in float32, on the device of `inputs`.

    `inputs`: what the network takes, (n, ...). Neither the network nor the random state changes.
    """
    trial = copy.deepcopy(module).train()
    labels = torch.arange(len(inputs), device=inputs.device) % classes
    with torch.random.fork_rng(devices=[inputs.device] if inputs.device.type == "cuda" else []):
        times = {kind: float("inf") for kind in ("none", name)}
        for _ in range(_REPEATS + 1):  # Turn by turn, the best of each: a machine that is busy for a while slows both.
            for kind in times:
                times[kind] = min(times[kind], _time(Precision(kind, inputs.device), trial, inputs, labels))
    return times[name] / times["none"]


def _time(precision: Precision, module: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    started = time.perf_counter()
    with precision.forward():
        loss = F.cross_entropy(module(inputs), labels)
    torch.autograd.backward(loss)
    loss.item()  # Waits for the device.
    module.zero_grad(set_to_none=True)
    return time.perf_counter() - started
