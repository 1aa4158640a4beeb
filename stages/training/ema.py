"""Exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stages.config.fit import Ema
from stages.training.slots import Slots


class Average:
    """The average of a network's weights and floating buffers over the optimizer steps from `start_step` on.

    Bias-corrected as Adam's moments are (Kingma & Ba 2015, section 3): after t steps the average is
    sum_i d^(t-i) w_i (1 - d) / (1 - d^t), kept up by moving it by (1 - d) / (1 - d^t) of the way to the new weights.
    Before the first averaged step it equals the weights. Integer buffers are taken over as they are.
    """

    def __init__(self, module: nn.Module, settings: Ema) -> None:
        self.decay = settings.decay
        self.start_step = settings.start_step
        self.count = 0
        self._module = module
        self._slots = Slots(module, weights=True)
        self._is_averaged = [value.is_floating_point() for value in self._slots.now()]
        self._names = [name for name, averaged in zip(self._slots.names, self._is_averaged, strict=True) if averaged]
        self._average = [value.detach().clone() for value in self._weights()]

    def _weights_themselves(self) -> list[Tensor]:
        pairs = zip(self._slots.now(), self._is_averaged, strict=True)
        return [value for value, averaged in pairs if averaged]

    def _weights(self) -> list[Tensor]:
        return [value.detach() for value in self._weights_themselves()]

    @torch.no_grad()
    def update(self, steps_taken: int) -> None:
        """After optimizer step number `steps_taken` (counted from 1)."""
        if steps_taken <= self.start_step:
            torch._foreach_copy_(self._average, self._weights())
            return
        self.count += 1
        weight = (1.0 - self.decay) / (1.0 - self.decay**self.count)
        torch._foreach_lerp_(self._average, self._weights(), weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the network holds the average."""
        raw = [value.clone() for value in self._weights()]
        with torch.no_grad():
            torch._foreach_copy_(self._weights(), self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights(), raw)

    def module_state(self) -> dict[str, Tensor]:
        """A state dict for the network, with the averaged weights."""
        # By identity: a module that hangs in two places has each weight under two names.
        pairs = zip(self._weights_themselves(), self._average, strict=True)
        averages = {id(weight): average for weight, average in pairs}
        held = self._module.state_dict(keep_vars=True)
        return {name: averages.get(id(value), value.detach()) for name, value in held.items()}

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: `count`, the averaged network's state dict under `module`, and its other buffers."""
        state = self.module_state()
        averages = zip(self._names, self._average, strict=True)
        return {
            "count": self.count,
            "module": state,
            "rest": {name: one for name, one in averages if name not in state},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a saved average back."""
        self.count = state["count"]
        for name, average in zip(self._names, self._average, strict=True):
            average.copy_(state["module"][name] if name in state["module"] else state["rest"][name])
