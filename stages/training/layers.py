"""Gradient norm and update-to-weight ratio of every layer, at some steps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LayerNorms:
    """Of one step, still on the device; one value per layer, in the order of `Layers.names`."""

    grads: Tensor
    weights: Tensor
    updates: Tensor


class Layers:
    """Watches a step: `before` it copies the weights, `after` it compares. Only for steps that are recorded."""

    def __init__(self, module: nn.Module) -> None:
        owners: dict[str, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                owners.setdefault(name.rpartition(".")[0] or name, []).append(parameter)
        self.names = list(owners)
        self._parameters = list(owners.values())
        self._former: list[list[Tensor]] | None = None
        self._grads: list[Tensor] = []

    @torch.no_grad()
    def before(self) -> None:
        """Just before the optimizer's step, gradients unscaled and not yet clipped."""
        self._former = [[parameter.detach().clone() for parameter in group] for group in self._parameters]
        self._grads = [
            _norm([one.grad for one in group if one.grad is not None], group[0]) for group in self._parameters
        ]

    @torch.no_grad()
    def after(self) -> LayerNorms:
        """Just after it."""
        if self._former is None:
            raise RuntimeError("before() must come first")
        pairs = list(zip(self._parameters, self._former, strict=True))
        moved = [_norm(torch._foreach_sub(list(now), former), now[0]) for now, former in pairs]
        held = [_norm(former, now[0]) for now, former in pairs]
        self._former = None
        return LayerNorms(torch.stack(self._grads), torch.stack(held), torch.stack(moved))


def _norm(tensors: list[Tensor] | tuple[Tensor, ...], like: Tensor) -> Tensor:
    if not tensors:
        return torch.zeros((), device=like.device)
    norms = torch._foreach_norm(tensors)
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(torch.float32) for norm in norms]))
    return total
