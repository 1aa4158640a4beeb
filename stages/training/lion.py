"""Lion (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BETAS = (0.9, 0.99)
BLOCK_BYTES = 64 * 1024 * 1024
"""Weights are stepped in blocks of about this size, so that the update, which is only needed for a moment, never takes
the memory that the second moment would have taken."""


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an average of gradient and momentum; one moment a weight. Wants a lower rate than AdamW.

    For each weight w with gradient g, momentum m (0 at first), rate lr and decay d (decoupled, as in AdamW):
    w <- w (1 - lr d) - lr sign(b1 m + (1 - b1) g), then m <- b2 m + (1 - b2) g.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> lion = Lion([weight], lr=0.25)
    >>> weight.grad = torch.tensor([1e-3, -1e3])
    >>> lion.step()
    >>> weight.data
    tensor([ 0.7500, -0.7500])
    """

    def __init__(
        self,
        params: list[Tensor] | list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = BETAS,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # The loop has no use for closures.
        """One step on all weights that have a gradient."""
        for group in self.param_groups:
            for block in _blocks([weight for weight in group["params"] if weight.grad is not None]):
                self._step_block(block, group["lr"], group["betas"], group["weight_decay"])

    def _step_block(self, weights: list[Tensor], lr: float, betas: tuple[float, float], decay: float) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        moments = [self._moment(weight) for weight in weights]
        update = torch._foreach_mul(moments, betas[0])
        torch._foreach_add_(update, gradients, alpha=1.0 - betas[0])
        torch._foreach_sign_(update)
        if decay:
            torch._foreach_mul_(weights, 1.0 - lr * decay)
        torch._foreach_add_(weights, update, alpha=-lr)
        torch._foreach_mul_(moments, betas[1])
        torch._foreach_add_(moments, gradients, alpha=1.0 - betas[1])

    def _moment(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
        moment: Tensor = state["exp_avg"]
        return moment


def _blocks(weights: list[Tensor]) -> Iterator[list[Tensor]]:
    """The weights in order, in blocks of about `BLOCK_BYTES`; a larger weight is a block of its own."""
    block: list[Tensor] = []
    size = 0
    for weight in weights:
        if block and size + weight.nbytes > BLOCK_BYTES:
            yield block
            block, size = [], 0
        block.append(weight)
        size += weight.nbytes
    if block:
        yield block
