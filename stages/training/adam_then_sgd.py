"""AdamW for the first part of a training, SGD with momentum for the rest (Keskar & Socher 2017, arXiv:1712.07628)."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from stages.runtime.exits import BadParams


class AdamThenSGD(torch.optim.AdamW):
    """`switch_at` steps of AdamW, then SGD with Nesterov momentum, which starts without momentum.

    The paper measures when to switch and with what rate; here both are given: `switch_at` steps that were really taken,
    and from there on the groups' `lr` times `switch_lr_scale` (the caller goes on setting `lr` to the schedule's).
    AdamW's two moments are dropped at the switch. `taken` counts the steps; it lies in the groups, so that `state_dict`
    holds it.

    The decay is decoupled in both phases (AdamW, SGDW: Loshchilov & Hutter 2019, arXiv:1711.05101) and, at lr times
    `weight_decay` a step, the same before and after the switch. As part of SGD's gradient it would be stronger from the
    switch on by the rate's scale and by 1 / (1 - momentum): a hundredfold by default, which undoes what Adam learned.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> both = AdamThenSGD([weight], lr=0.125, switch_at=1, switch_lr_scale=2.0, momentum=0.0)
    >>> for gradient in (3.0, 1.0):  # Adam moves by lr whatever the gradient, SGD by lr * scale * gradient.
    ...     weight.grad = torch.tensor([gradient])
    ...     both.step()
    ...     print(f"{weight.item():.4f}")
    0.8750
    0.6250
    """

    def __init__(
        self,
        params: list[Tensor] | list[dict[str, Any]],
        lr: float,
        switch_at: int,
        switch_lr_scale: float,
        betas: tuple[float, float] = (0.9, 0.999),
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, weight_decay=weight_decay, fused=fused)
        self.switch_at, self.switch_lr_scale, self.momentum = switch_at, switch_lr_scale, momentum
        # An fp16 scaler must not call `step` for a step that it skips: it would be counted.
        self._step_supports_amp_scaling = False
        for group in self.param_groups:
            group.update(taken=0, switch_at=switch_at)
        if switch_at == 0:
            self._begin_sgd()

    @property
    def taken(self) -> int:
        """Steps that were taken so far."""
        taken: int = self.param_groups[0]["taken"]
        return taken

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # The loop has no use for closures.
        """One step on all weights that have a gradient."""
        if self.taken < self.switch_at:
            super().step()
        else:
            for group in self.param_groups:
                self._sgd(group)
        for group in self.param_groups:
            group["taken"] += 1
        if self.taken == self.switch_at:
            self._begin_sgd()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of any optimizer. Raises `BadParams` when the state is of a training that switches at another step."""
        switch_at = state_dict["param_groups"][0]["switch_at"]
        if switch_at != self.switch_at:
            raise BadParams(
                f"adam_then_sgd must switch after {switch_at} steps as when it was saved, now it is {self.switch_at}; "
                "put epochs, batch_size and switch_share back, or train from the beginning"
            )
        super().load_state_dict(state_dict)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not AdamW's own: it adds what files of older versions lack, and fails on a state that is not Adam's.
        torch.optim.Optimizer.__setstate__(self, state)

    def _begin_sgd(self) -> None:
        self.state.clear()  # First, so that old and new state are not held at once.
        if self.momentum:
            for weight in (weight for group in self.param_groups for weight in group["params"]):
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

    def _sgd(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
        sgd(
            weights,
            [weight.grad for weight in weights],
            [self.state[weight]["momentum_buffer"] if self.momentum else None for weight in weights],
            weight_decay=0.0,
            momentum=self.momentum,
            lr=group["lr"] * self.switch_lr_scale,
            dampening=0.0,
            nesterov=self.momentum > 0,
            maximize=False,
            fused=group["fused"],
        )
