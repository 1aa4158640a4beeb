"""A multi-layer perceptron: for tables, and the smallest network for images."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (128,), dropout: float = 0.0) -> nn.Module:
    """Linear layers with ReLU between them; an image is flattened first.

    Takes normalised float (N, C, H, W) or (N, D), gives logits (N, classes). `hidden` are the widths of the layers
    between, `dropout` the share of units that is dropped after each of them. Raises `ValueError`.
    """
    if not isinstance(hidden, Sequence) or any(not isinstance(width, int) or width < 1 for width in hidden):
        raise ValueError(f"hidden must be a list of whole numbers from 1 up, got {hidden!r}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must lie in 0 <= dropout < 1, got {dropout!r}")
    widths = [prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
