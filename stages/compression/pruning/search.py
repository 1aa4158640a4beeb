"""Finds the least pruning that reaches a bound on the multiply-accumulates, on copies and without training."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from stages.compression.pruning import dependencies
from stages.compression.pruning.candidates import Candidate, Importance, Survey, survey
from stages.compression.pruning.plan import Scope, Widths, fitting, narrowest, removals
from stages.compression.pruning.prediction import layers, predicted
from stages.compression.pruning.time_limit import TimeIsUp, time_limit
from stages.models.counting import Counts, count
from stages.models.registry import batch_shape
from stages.runtime.exits import GateFailed

ATTEMPTS = 8
"""Copies that are made at most until one holds the bound that was predicted to."""

Shape = tuple[int, ...]
"""The data's (H, W, C) or (D,)."""


@dataclass(frozen=True)
class Rules:
    """How channels are chosen."""

    importance: Importance
    scope: Scope
    round_to: int
    """Channel counts are multiples of this."""


@dataclass(frozen=True)
class Pruned:
    """What came of one pruning."""

    module: nn.Module
    """A smaller copy, or the module itself when nothing was taken out."""
    counts: Counts
    kept: dict[str, tuple[int, int]]
    """Root layer -> channels before and after, where some went."""
    spared: dict[str, str]
    """Layer -> why it was left alone."""
    reason: str
    """Why the bound does not hold; empty when it does."""


def shrink(module: nn.Module, input_shape: Shape, max_macs: float, rules: Rules, time_limit_s: float) -> Pruned:
    """The copy of `module` with the least pruning whose multiply-accumulates are at most `max_macs`.

    Where the bound is out of reach, the smallest copy comes back with the reason; where nothing can be done at all,
    the module itself. Every copy has been run, gives outputs of the same shape, and never has more parameters. The
    same module gives the same copy. Raises `GateFailed` when the time is over.
    """
    before = count(module, input_shape)
    if before.macs == 0:
        return Pruned(module, before, {}, {}, reason="it has no multiply-accumulates that can be counted")
    if before.macs <= max_macs:
        return Pruned(module, before, {}, {}, reason="")
    try:
        with dependencies.restored(module), time_limit(time_limit_s):
            found = survey(module, example(module, input_shape), rules.importance, rules.round_to)
            found = _without_breaking(module, input_shape, before, found)
            if found.candidates:
                return _least(module, input_shape, before, max_macs, rules.scope, found)
            return Pruned(module, before, {}, found.spared, f"nothing can be pruned: {summary(found.spared)}")
    except TimeIsUp:  # No reason to hand the model on: the clock must not decide what an artifact holds.
        raise GateFailed(
            f"Torch-Pruning was not through with the model after {time_limit_s:g} s; raise prune.time_limit_s, or "
            "switch prune.enabled off"
        ) from None
    except Exception as error:  # A foreign library on a foreign model: whatever it raises is the reason.
        reason = f"Torch-Pruning cannot follow the model: {dependencies.said(error)}"
    return Pruned(module, before, {}, {}, reason)


def example(module: nn.Module, input_shape: Shape) -> Tensor:
    """A batch of two as the module takes it, normalised float (2, C, H, W) or (2, D); always the same numbers."""
    anchor = next(module.parameters(), torch.empty(0))
    values = torch.randn(batch_shape(input_shape, 2), generator=torch.Generator().manual_seed(0))
    return values.to(anchor.device, anchor.dtype)


def summary(spared: Mapping[str, str]) -> str:
    """The reasons, each once with the layers it holds for."""
    layers: dict[str, list[str]] = {}
    for name, reason in spared.items():
        layers.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in layers.items())


def _least(
    module: nn.Module, input_shape: Shape, before: Counts, max_macs: float, scope: Scope, found: Survey
) -> Pruned:
    """Searches on predicted multiply-accumulates and counts the copy that comes of it.

    Where the copy is still too large (the prediction does not know every operation), searches again for less.
    """
    sizes = layers(module, example(module, input_shape))

    def cost(kept: Widths) -> float:
        return predicted(before.macs, sizes, found.candidates, kept)

    wanted = max_macs
    for _ in range(ATTEMPTS):
        kept = narrowest(found.candidates) if wanted <= 0 else fitting(found.candidates, scope, cost, wanted)
        smaller = _thinned(module, input_shape, found.candidates, kept)
        counts = count(smaller, input_shape)
        if counts.macs <= max_macs or kept == narrowest(found.candidates):
            break
        wanted = min(wanted, cost(kept)) * max_macs / counts.macs - 1.0
    changed = {c.layer: (c.channels, n) for c, n in zip(found.candidates, kept, strict=True) if n < c.channels}
    floor = "every layer that can be pruned has its least width; " + summary(found.spared)
    return Pruned(smaller, counts, changed, found.spared, "" if counts.macs <= max_macs else floor)


def _without_breaking(module: nn.Module, input_shape: Shape, before: Counts, found: Survey) -> Survey:
    """Leaves out the candidates whose pruning breaks the module's forward, with the reason."""
    if _fault(module, input_shape, before, found.candidates) is None:
        return found
    works: list[Candidate] = []
    spared = dict(found.spared)
    for candidate in found.candidates:
        fault = _fault(module, input_shape, before, (*works, candidate))
        if fault is None:
            works.append(candidate)
        else:
            spared[candidate.layer] = fault
    return replace(found, candidates=tuple(works), spared=spared)


def _fault(module: nn.Module, input_shape: Shape, before: Counts, candidates: Sequence[Candidate]) -> str | None:
    """Why the candidates cannot all be pruned to their least width, or None."""
    try:
        smaller = _thinned(module, input_shape, candidates, narrowest(candidates))
        params = count(smaller, input_shape).params
    except Exception as error:  # A foreign library on a foreign model: whatever it raises is the reason.
        return f"pruned, the model no longer runs ({dependencies.said(error)})"
    if params > before.params:
        return f"pruned, the model would grow from {before.params} to {params} parameters"
    return None


def _thinned(module: nn.Module, input_shape: Shape, candidates: Sequence[Candidate], kept: Widths) -> nn.Module:
    """A copy with so many channels, which still gives outputs of the same shape."""
    batch = example(module, input_shape)
    smaller = copy.deepcopy(module)
    dependencies.remove(smaller, batch, removals(candidates, kept))
    expected, came = _outputs(module, batch), _outputs(smaller, batch)
    if came.shape != expected.shape:
        raise ValueError(f"outputs of shape {tuple(came.shape)} instead of {tuple(expected.shape)}")
    if not bool(came.isfinite().all()):
        raise ValueError("outputs that are not finite")
    return smaller


def _outputs(module: nn.Module, batch: Tensor) -> Tensor:
    with dependencies.restored(module), torch.no_grad():
        return torch.as_tensor(module.eval()(batch))
