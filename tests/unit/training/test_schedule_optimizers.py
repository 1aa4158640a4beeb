"""Learning rates at every step, and which weights decay."""

import math

import pytest
import torch
from torch import nn

from stages.config.fit import Fit
from stages.models.resnet_cifar import resnet_cifar
from stages.training.optimizers import optimizer, parameter_groups
from stages.training.schedule import warmup_cosine, warmup_steps


def test_warmup_is_linear_and_reaches_the_peak() -> None:
    rates = [warmup_cosine(step, 100, 10, 0.4) for step in range(100)]
    assert rates[:10] == pytest.approx([0.04 * (i + 1) for i in range(10)])
    assert rates[10] == 0.4 == max(rates)


def test_cosine_matches_torch() -> None:
    module = nn.Linear(2, 2)
    adam = torch.optim.SGD(module.parameters(), lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=50)
    for step in range(50):
        assert warmup_cosine(step, 50, 0, 0.3) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9, abs=1e-12)
        adam.step()
        theirs.step()


def test_cosine_ends_near_zero_and_falls() -> None:
    rates = [warmup_cosine(step, 30, 3, 1.0) for step in range(3, 30)]
    assert rates == sorted(rates, reverse=True)
    assert 0.0 < rates[-1] < 0.01


@pytest.mark.parametrize(("total", "share", "steps"), [(300, 0.1, 30), (1, 0.9, 0), (2, 0.99, 1), (10, 0.0, 0)])
def test_warmup_leaves_a_step(total: int, share: float, steps: int) -> None:
    assert warmup_steps(total, share) == steps
    assert math.isfinite(warmup_cosine(total - 1, total, steps, 1.0))


def test_biases_and_norms_do_not_decay() -> None:
    module = resnet_cifar((8, 8, 1), 10, depth=8, width=4)
    decayed, spared = parameter_groups(module, 0.1)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        n for n, _ in module.named_parameters() if "conv" in n or n in ("fc.weight",) or n.endswith("shortcut.0.weight")
    }
    assert decayed["weight_decay"] == 0.1
    assert spared["weight_decay"] == 0.0
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"optimizer": "adamw"}, 1 - 0.1 * 0.5),
        ({"optimizer": "sgd", "momentum": 0.0}, 1 - 0.1 * 0.5),
        ({"optimizer": "sgd", "momentum": 0.5}, 1 - 0.1 * 0.5 * 1.5),  # Nesterov looks one momentum ahead.
    ],
)
def test_a_step_moves_spared_weights_by_the_gradient_alone(settings: dict[str, object], factor: float) -> None:
    module = nn.Linear(3, 2)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    made = optimizer(module, Fit(lr=0.1, weight_decay=0.5, **settings))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    torch.testing.assert_close(module.bias.detach(), before["bias"], rtol=0, atol=0)
    torch.testing.assert_close(module.weight.detach(), before["weight"] * factor)


def test_sgd_is_nesterov_with_momentum() -> None:
    module = nn.Linear(3, 2)
    assert optimizer(module, Fit(optimizer="sgd")).defaults["nesterov"]
    assert optimizer(module, Fit(optimizer="sgd")).defaults["momentum"] == 0.9
    assert not optimizer(module, Fit(optimizer="sgd", momentum=0.0)).defaults["nesterov"]


def test_frozen_weights_are_left_out() -> None:
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    assert len(parameter_groups(module, 0.1)) == 1
