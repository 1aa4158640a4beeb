"""Norm and clipping are those of torch.nn.utils, to the bit."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from stages.training.clipping import clip, total_norm


def _weights(scale: float = 1.0, types: tuple[torch.dtype, ...] = (torch.float32,) * 4) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.zeros(size, dtype=kind)) for size, kind in zip((7, 1, 300, 5000), types, strict=True)]
    for weight in weights:
        weight.grad = (torch.randn(len(weight), generator=generator) * scale).to(weight.dtype)
    return weights


def _grads(weights: list[nn.Parameter]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


@pytest.mark.parametrize("scale", [1e-6, 0.01, 1.0, 1e30, math.inf, math.nan])
def test_is_what_torch_computes_to_the_bit(scale: float) -> None:
    mine, theirs = _weights(scale), _weights(scale)
    norm, expected = total_norm(_grads(mine)), get_total_norm(_grads(theirs))
    clip(_grads(mine), 1.0, norm)
    clip_grads_with_norm_(theirs, 1.0, expected)
    for one, other in zip([norm, *_grads(mine)], [expected, *_grads(theirs)], strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_mixed_types_are_clipped_too() -> None:
    types = (torch.float32, torch.float64, torch.bfloat16, torch.float32)
    grads = _grads(_weights(types=types))
    norm = total_norm(grads)
    assert float(norm) == pytest.approx(float(get_total_norm(grads)), rel=1e-3)
    clip(grads, 1.0, norm)
    assert [grad.dtype for grad in grads] == list(types)
    assert float(total_norm(grads)) == pytest.approx(1.0, rel=1e-2)


def test_no_gradient_has_norm_zero() -> None:
    assert float(total_norm([])) == 0.0
    clip([], 1.0, total_norm([]))
