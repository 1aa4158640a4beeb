"""Optimizers, and which weights decay."""

import torch
from torch import nn

from stages.config.fit import Fit

DEFAULT_MOMENTUM = 0.9


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two groups: weights of two or more dimensions decay; biases and norms (fewer dimensions) do not."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trainable if parameter.ndim >= 2]
    spared = [parameter for parameter in trainable if parameter.ndim < 2]
    groups: list[dict[str, object]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def optimizer(module: nn.Module, settings: Fit) -> torch.optim.Optimizer:
    """The optimizer that the settings name, over the module's trainable weights (fused: one pass over all of them)."""
    groups = parameter_groups(module, settings.weight_decay)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.lr, fused=True)
    momentum = DEFAULT_MOMENTUM if settings.momentum is None else settings.momentum
    return torch.optim.SGD(groups, lr=settings.lr, momentum=momentum, nesterov=momentum > 0, fused=True)
