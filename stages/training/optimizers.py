"""Optimizers, which of them suits a network, and which weights decay.

>>> module = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
>>> settings = Fit(optimizer="auto", lr=0.1, groups=[Group(pattern="^1", lr_scale=0.5)])
>>> choose(module, settings).name
'adamw'
>>> made = optimizer(module, settings, total_steps=100)
>>> [(group["lr_scale"], group["weight_decay"], len(group["params"])) for group in made.param_groups]
[(1.0, 0.05, 1), (1.0, 0.0, 1), (0.5, 0.0, 2)]
>>> for group in made.param_groups:  # Before each step, with the schedule's learning rate.
...     group["lr"] = 0.01 * group["lr_scale"]
>>> module(torch.ones(4, 3)).sum().backward()
>>> made.step()
>>> made.zero_grad(set_to_none=True)
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stages.config.fit import Fit, Group
from stages.runtime.exits import BadParams
from stages.training.adam_then_sgd import AdamThenSGD
from stages.training.lion import BETAS as LION_BETAS
from stages.training.lion import Lion

DEFAULT_MOMENTUM = 0.9
ADAM_BETAS = (0.9, 0.999)
SWITCH_SHARE = 0.5
SWITCH_LR_SCALE = 10.0

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ATTENTION = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_SHORT_MEMORY = "where memory is short, lion is the choice, with one moment a weight instead of AdamW's two"


@dataclass(frozen=True)
class Choice:
    """An optimizer, and why."""

    name: str
    """`sgd`, `adam`, `adamw`, `lion` or `adam_then_sgd`."""

    reason: str
    """One sentence."""


def choose(module: nn.Module, settings: Fit) -> Choice:
    """The optimizer that the settings name, or for `auto` the one that suits the module.

    Looks at nothing else, so that it is the same on every machine. The learning rate stays the one that was set: where
    `auto` gives SGD, it should be larger than for AdamW.
    """
    if settings.optimizer != "auto":
        return Choice(settings.optimizer, "set by optimizer")
    if _has_attention(module):
        return Choice("adamw", f"AdamW, because the network has attention; {_SHORT_MEMORY}")
    if _is_convolutional(module):
        return Choice(
            "sgd", f"SGD with momentum, because the network has convolutions and linear layers alone; {_SHORT_MEMORY}"
        )
    return Choice("adamw", f"AdamW, because the network has neither attention nor convolutions alone; {_SHORT_MEMORY}")


def parameter_groups(module: nn.Module, settings: Fit) -> list[dict[str, Any]]:
    """The trainable weights by learning rate and decay: dicts of `params`, `lr_scale` and `weight_decay`.

    Weights of two or more dimensions decay; biases, and the weights of layers whose class is named a norm, do not. A
    weight whose name matches one of `settings.groups` (regular expression search, the first that matches) has that
    group's `lr_scale`, and its `weight_decay` where one is given, then whatever its dimensions; otherwise the rule
    above. A tied weight is counted once, and matched by any of its names. Frozen weights are left out.

    Raises `BadParams`: no trainable weight; a pattern that is no regular expression, or that no weight falls to.
    """
    names = _trainable(module)
    if not names:
        raise BadParams(
            "training needs at least one trainable weight, the network has none; unfreeze some (requires_grad)"
        )
    left = dict(names)  # Keys are compared by identity: a tensor's hash is its id.
    special: list[dict[str, Any]] = []
    spare = _spared(module)
    for group in settings.groups:
        members = _matching(group.pattern, left)
        if not members:
            raise BadParams(_no_match(group.pattern, module, names))
        for weight in members:
            del left[weight]
        special += _by_decay(members, group, settings.weight_decay, spare)
    return _by_decay(list(left), Group(pattern="."), settings.weight_decay, spare) + special


def optimizer(module: nn.Module, settings: Fit, total_steps: int) -> torch.optim.Optimizer:
    """The chosen optimizer over the module's trainable weights, on the device where they lie now.

    `total_steps` are the optimizer steps of the whole training. The caller sets `group["lr"]` to the schedule's
    learning rate times `group["lr_scale"]` before each step. `state_dict()` holds plain values and tensors alone.
    Raises `BadParams` as `parameter_groups` does.
    """
    groups = [{**group, "lr": settings.lr * group["lr_scale"]} for group in parameter_groups(module, settings)]
    weights = [weight for group in groups for weight in group["params"]]
    fused = all(weight.is_floating_point() for weight in weights)  # One pass over all weights; not for complex ones.
    momentum = DEFAULT_MOMENTUM if settings.momentum is None else settings.momentum
    name = choose(module, settings).name
    if name == "sgd":
        return _sgd(groups, settings.lr, momentum, fused=fused)
    first, second = settings.betas or (LION_BETAS if name == "lion" else ADAM_BETAS)
    if name == "lion":
        return Lion(groups, settings.lr, (first, second))
    if name == "adam_then_sgd":
        share = SWITCH_SHARE if settings.switch_share is None else settings.switch_share
        scale = SWITCH_LR_SCALE if settings.switch_lr_scale is None else settings.switch_lr_scale
        return AdamThenSGD(
            groups, settings.lr, round(total_steps * share), scale, (first, second), momentum, fused=fused
        )
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.lr, betas=(first, second), fused=fused)


def _sgd(groups: list[dict[str, Any]], lr: float, momentum: float, *, fused: bool) -> torch.optim.SGD:
    made = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=fused)
    if momentum:  # From zero is what torch does, but its fused step fails on a weight whose first gradient comes late.
        for weight in (weight for group in made.param_groups for weight in group["params"]):
            made.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return made


def _has_attention(module: nn.Module) -> bool:
    parts = module.modules()
    return any(isinstance(part, _ATTENTION) or "attention" in type(part).__name__.lower() for part in parts)


def _is_convolutional(module: nn.Module) -> bool:
    """Whether all weights of two or more dimensions belong to convolutions and linear layers, with a convolution."""
    owners = [part for part in module.modules() if any(own.ndim >= 2 for own in part.parameters(recurse=False))]
    known = all(isinstance(part, (*_CONVOLUTIONS, nn.Linear)) for part in owners)
    return known and any(isinstance(part, _CONVOLUTIONS) for part in owners)


def _trainable(module: nn.Module) -> dict[nn.Parameter, list[str]]:
    """Each trainable weight once, in the module's order, with all its names (tied weights have several)."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if weight.requires_grad:
            names.setdefault(weight, []).append(name)
    return names


def _matching(pattern: str, names: Mapping[nn.Parameter, list[str]]) -> list[nn.Parameter]:
    return [weight for weight, several in names.items() if any(re.search(pattern, name) for name in several)]


def _no_match(pattern: str, module: nn.Module, names: Mapping[nn.Parameter, list[str]]) -> str:
    """Why no weight falls to a group."""
    needed = f"a group's pattern must match a trainable weight, {pattern!r}"
    if _matching(pattern, names):
        return f"{needed} matches only weights of the groups before it; put the narrower pattern first, or drop it"
    if any(re.search(pattern, name) for name, _ in module.named_parameters(remove_duplicate=False)):
        return f"{needed} matches frozen ones alone; unfreeze them, or drop the group"
    return f"{needed} matches none; {_nearest(pattern, [name for several in names.values() for name in several])}"


def _nearest(pattern: str, names: list[str]) -> str:
    plain = re.sub(r"[^\w.]|\\.(?=\w)", "", pattern.replace("\\.", "."))
    near = difflib.get_close_matches(plain, names, n=3, cutoff=0.3) or names[:3]
    return f"the nearest names are {', '.join(near)}"


def _spared(module: nn.Module) -> set[nn.Parameter]:
    """Weights that do not decay: of fewer than two dimensions, biases and norms of any (LayerNorm over a plane)."""
    found = {weight for weight in module.parameters() if weight.ndim < 2}
    for part in module.modules():
        own = dict(part.named_parameters(recurse=False))
        is_norm = "norm" in type(part).__name__.lower()
        found |= {weight for name, weight in own.items() if is_norm or name == "bias"}
    return found


def _by_decay(
    weights: list[nn.Parameter], group: Group, general: float, spare: set[nn.Parameter]
) -> list[dict[str, Any]]:
    """One or two groups (none without weights): all with the group's own decay, or parted by what is spared."""
    parts: list[tuple[list[nn.Parameter], float]] = [(weights, group.weight_decay or 0.0)]
    if group.weight_decay is None:
        spared = [weight for weight in weights if weight in spare]
        decayed = [weight for weight in weights if weight not in spare]
        parts = [(decayed, general), (spared, 0.0)]
    return [
        {"params": members, "lr_scale": group.lr_scale, "weight_decay": decay} for members, decay in parts if members
    ]
