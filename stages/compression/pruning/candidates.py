"""What may be pruned: one candidate for each set of coupled channels, ranked; the rest is spared with a reason."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch_pruning import ops
from torch_pruning.pruner.importance import GroupMagnitudeImportance

from stages.compression.pruning import dependencies
from stages.compression.pruning.layers import guarded

Scores = npt.NDArray[np.float64]
Importance = Literal["l1", "l2"]
IS_OUTPUT = "its outputs are the model's outputs"
"""Why the last layer is spared in every model."""


@dataclass(frozen=True)
class Candidate:
    """Channels that can be thinned out: the outputs of `layer`, and everything coupled to them."""

    layer: str
    """Name of the root layer."""
    channels: int
    """Its present output channels."""
    blocks: int
    """Equal blocks (of a grouped convolution or GroupNorm) that must lose the same positions; 1: no blocks."""
    unit: int
    """What is kept must be a multiple of this: `round_to`, made divisible by `blocks`."""
    scores: Scores = field(repr=False)
    """Importance of each position in a block, (channels / blocks,); the mean over a candidate is 1."""
    coupled: dict[tuple[str, bool], float] = field(default_factory=dict, repr=False)
    """(layer, its outputs rather than its inputs) -> channels that it loses for each one of the root's."""

    @property
    def least(self) -> int:
        """The fewest channels that may stay."""
        return self.unit

    def kept(self, removed_positions: int) -> int:
        """Channels that stay when so many positions of each block are asked to go: a multiple of `unit`, never 0."""
        wanted = self.channels - removed_positions * self.blocks
        if removed_positions == 0:
            return self.channels
        return max(wanted // self.unit, 1) * self.unit

    def score_of(self, fewer: int, more: int) -> float:
        """Mean importance of the channels by which two widths differ; 0 where they are equal."""
        ranked = np.sort(self.scores)
        between = ranked[(self.channels - more) // self.blocks : (self.channels - fewer) // self.blocks]
        return float(between.mean()) if len(between) else 0.0

    def removed(self, kept: int) -> list[int]:
        """Indices of the output channels that go when `kept` stay: the least important of each block, ascending."""
        positions = np.sort(np.argsort(self.scores, kind="stable")[: (self.channels - kept) // self.blocks])
        size = self.channels // self.blocks
        return [int(block * size + position) for block in range(self.blocks) for position in positions]


@dataclass(frozen=True)
class Survey:
    """Candidates in a fixed order, and layer name -> why it is left alone."""

    candidates: tuple[Candidate, ...]
    spared: dict[str, str]


def survey(module: nn.Module, example: Tensor, importance: Importance, round_to: int) -> Survey:
    """Looks at every set of coupled channels. `example` is a normalised batch as the module takes it.

    Importance: the L1 or squared L2 norm of a channel's weights (Li et al. 2017, https://arxiv.org/abs/1608.08710), the
    mean over all coupled layers, divided by its mean over the candidate so that layers compare (Fang et al. 2023).
    """
    keep_out = guarded(module)
    try:
        graph = dependencies.trace(module, example)
        listed = list(dependencies.groups(graph))
    except Exception as error:  # A foreign library on a foreign model: whatever it raises is the reason.
        said = f"Torch-Pruning cannot follow the model ({dependencies.said(error)})"
        return Survey((), {**keep_out, type(module).__name__: said})
    rank = GroupMagnitudeImportance(p=1 if importance == "l1" else 2)
    found = {name: _candidate(graph, name, group, rank, round_to, keep_out) for name, group in listed}
    candidates = tuple(each for each in found.values() if isinstance(each, Candidate))
    spared = {name: each for name, each in found.items() if isinstance(each, str)}
    shown = set(spared.values())
    spared |= {name: why for name, why in keep_out.items() if name not in spared and why not in shown}
    if not candidates and not spared:
        spared[type(module).__name__] = "no convolution and no linear layer in it leads to its outputs"
    return Survey(candidates, spared)


def _candidate(
    graph: Any, name: str, group: Any, rank: Any, round_to: int, keep_out: dict[str, str]
) -> "Candidate | str":
    if dependencies.reaches_output(graph, group):
        return IS_OUTPUT
    coupled = list(dependencies.layers_of(graph, group))
    for other, *_ in coupled:
        if other in keep_out:
            return keep_out[other]
    channels = dependencies.channels(graph, graph.model.get_submodule(name), outputs=True)
    blocks = 1
    for other, layer, outputs, _ in coupled:
        own = _blocks(layer)
        if own > 1 and dependencies.channels(graph, layer, outputs) != channels:
            return f"{other} groups channels of several layers together"
        blocks = math.lcm(blocks, own)
    unit = math.lcm(round_to, blocks)
    if channels <= unit:
        within = f" in {blocks} groups" if blocks > 1 else ""
        return f"it has {channels} channels{within}, and {unit} is the least that round_to {round_to} allows"
    try:
        scores = rank(group)
    except (IndexError, RuntimeError, ValueError) as error:
        return (
            f"Torch-Pruning lost track of its channels ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        )
    if scores is None or len(scores) != channels:
        return "its channels cannot be ranked: no weights belong to each"
    if not bool(scores.isfinite().all()):
        return "its weights are not finite"
    positions = scores.double().view(blocks, -1).mean(0).cpu().numpy()
    sides = {(other, outputs): size / channels for other, _, outputs, size in coupled}
    return Candidate(name, channels, blocks, unit, positions, sides)


def _blocks(layer: Any) -> int:
    if isinstance(layer, nn.GroupNorm):
        return layer.num_groups
    if isinstance(layer, nn.modules.conv._ConvNd) and ops.module2type(layer) != ops.OPTYPE.DEPTHWISE_CONV:
        return layer.groups
    return 1
