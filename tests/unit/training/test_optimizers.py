"""Each optimizer against a reference, which weights decay, groups, the choice of `auto`, and exact resumes."""

import copy
import doctest
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.config.fit import Fit, Group
from stages.models.mlp import mlp
from stages.models.resnet_cifar import resnet_cifar
from stages.runtime.exits import BadParams
from stages.training import adam_then_sgd, lion, optimizers
from stages.training.optimizers import Choice, choose, optimizer, parameter_groups
from stages.training.schedule import learning_rate

STEPS = 12
NAMES = ["auto", "sgd", "adam", "adamw", "lion", "adam_then_sgd"]


class Tied(nn.Module):
    """An embedding that is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(words))
        return logits


class SelfAttention2d(nn.Module):
    """Attention of someone's own, of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(3, 9, 1)


class Mixing(nn.Module):
    """A weight of two dimensions that is neither convolution nor linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.mix = nn.Parameter(torch.eye(2))


def small(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def like(module: nn.Module) -> nn.Module:
    """The same structure with other weights, so that what is not restored shows."""
    other = copy.deepcopy(module)
    for weight in other.parameters():
        nn.init.normal_(weight)
    return other


def loss_of(module: nn.Module, step: int) -> Tensor:
    """A loss that depends on the step and the weights."""
    generator = torch.Generator().manual_seed(step)
    weight = next(module.parameters())
    inputs = torch.randn(8, weight.shape[1], generator=generator, dtype=weight.dtype)
    labels = torch.randint(0, 2, (8,), generator=generator)
    return F.cross_entropy(module(inputs), labels)


def take(module: nn.Module, made: torch.optim.Optimizer, settings: Fit, steps: range) -> None:
    """Steps as the training loop does them."""
    rate = learning_rate(settings, STEPS)
    for step in steps:
        loss_of(module, step).backward()
        for group in made.param_groups:
            group["lr"] = rate(step) * group["lr_scale"]
        made.step()
        made.zero_grad(set_to_none=True)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


def assert_same(ours: nn.Module, theirs: nn.Module, *, rtol: float, atol: float) -> None:
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=rtol, atol=atol)


def by_name(module: nn.Module, groups: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Of each weight: lr_scale and weight_decay."""
    names = {weight: name for name, weight in module.named_parameters()}
    found = {names[w]: (group["lr_scale"], group["weight_decay"]) for group in groups for w in group["params"]}
    assert len(found) == sum(len(group["params"]) for group in groups)  # None twice.
    return found


@pytest.mark.parametrize("part", [optimizers, lion, adam_then_sgd])
def test_docstring_examples(part: Any) -> None:
    outcome = doctest.testmod(part)
    assert outcome.attempted >= 3
    assert outcome.failed == 0


# Which weights decay


def test_biases_and_norms_do_not_decay() -> None:
    module = resnet_cifar((8, 8, 1), 10, depth=8, width=4)
    decay = {
        name: decay for name, (_, decay) in by_name(module, parameter_groups(module, Fit(weight_decay=0.1))).items()
    }
    assert decay == {
        name: 0.1 if "conv" in name or name == "fc.weight" or name.endswith("shortcut.0.weight") else 0.0
        for name, _ in module.named_parameters()
    }


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({"optimizer": "adamw"}, 1 - 0.1 * 0.5),
        ({"optimizer": "lion"}, 1 - 0.1 * 0.5),
        ({"optimizer": "adam_then_sgd"}, 1 - 0.1 * 0.5),
        ({"optimizer": "adam_then_sgd", "switch_share": 0.001}, 1 - 0.1 * 0.5),  # SGD from the first step; the same.
        ({"optimizer": "sgd", "momentum": 0.0}, 1 - 0.1 * 0.5),
        ({"optimizer": "sgd", "momentum": 0.5}, 1 - 0.1 * 0.5 * 1.5),  # Nesterov looks one momentum ahead.
    ],
)
def test_a_step_moves_spared_weights_by_the_gradient_alone(settings: dict[str, Any], factor: float) -> None:
    module = nn.Linear(3, 2)
    before = weights(module)
    made = optimizer(module, Fit(lr=0.1, weight_decay=0.5, **settings), STEPS)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    torch.testing.assert_close(module.bias.detach(), before["bias"], rtol=0, atol=0)
    torch.testing.assert_close(module.weight.detach(), before["weight"] * factor)


def test_a_norm_over_a_plane_does_not_decay_either() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm([2, 4, 4]), nn.Flatten(), nn.Linear(32, 2))
    spared = {id(p) for group in parameter_groups(module, Fit()) if not group["weight_decay"] for p in group["params"]}
    assert {name for name, p in module.named_parameters() if id(p) in spared} == {
        "0.bias",
        "1.weight",
        "1.bias",
        "3.bias",
    }


def test_frozen_weights_are_left_out() -> None:
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    assert by_name(module, parameter_groups(module, Fit())) == {"weight": (1.0, 0.05)}


def test_a_network_without_trainable_weights_is_refused() -> None:
    with pytest.raises(BadParams, match="at least one trainable weight"):
        parameter_groups(nn.Linear(3, 2).requires_grad_(False), Fit())
    with pytest.raises(BadParams, match="at least one trainable weight"):
        optimizer(nn.ReLU(), Fit(), STEPS)


# Groups


def test_groups_by_name_the_first_that_matches_wins() -> None:
    module = small()
    settings = Fit(
        weight_decay=0.1,
        groups=[
            Group(pattern=r"^3\.weight", lr_scale=2.0, weight_decay=0.3),
            Group(pattern=r"^3\.", lr_scale=0.5),
            Group(pattern=r"^1\.", lr_scale=4.0, weight_decay=0.2),
        ],
    )
    assert by_name(module, parameter_groups(module, settings)) == {
        "0.weight": (1.0, 0.1),
        "0.bias": (1.0, 0.0),
        "1.weight": (4.0, 0.2),  # Its own decay is for all of its weights.
        "1.bias": (4.0, 0.2),
        "3.weight": (2.0, 0.3),
        "3.bias": (0.5, 0.0),  # Without one, the general rule.
    }


def test_a_group_without_a_decay_of_its_own_follows_the_rule() -> None:
    module = nn.Linear(3, 2)
    groups = parameter_groups(module, Fit(groups=[Group(pattern=".", lr_scale=0.1)]))
    assert by_name(module, groups) == {"weight": (0.1, 0.05), "bias": (0.1, 0.0)}


def test_a_groups_decay_of_zero_is_its_own() -> None:
    module = nn.Linear(3, 2)
    groups = parameter_groups(module, Fit(groups=[Group(pattern="weight", weight_decay=0.0)]))
    assert by_name(module, groups) == {"weight": (1.0, 0.0), "bias": (1.0, 0.0)}


def test_the_scale_scales_the_step() -> None:
    module, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(module.state_dict())
    before = weights(module)
    for one, groups in ((module, [Group(pattern="bias", lr_scale=0.25)]), (plain, [])):
        settings = Fit(optimizer="sgd", lr=0.1, weight_decay=0.0, momentum=0.0, groups=groups)
        made = optimizer(one, settings, STEPS)
        for parameter in one.parameters():
            parameter.grad = torch.ones_like(parameter)
        made.step()  # Already before the loop sets the rate.
    torch.testing.assert_close(module.bias - before["bias"], (plain.bias - before["bias"]) * 0.25)
    torch.testing.assert_close(module.weight, plain.weight)


def test_tied_weights_are_counted_once_and_found_by_either_name() -> None:
    module = Tied()
    assert by_name(module, parameter_groups(module, Fit())) == {
        "embedding.weight": (1.0, 0.05),
        "head.bias": (1.0, 0.0),
    }
    for pattern in (r"^embedding", r"^head\.weight"):
        found = by_name(module, parameter_groups(module, Fit(groups=[Group(pattern=pattern, lr_scale=3.0)])))
        assert found == {"embedding.weight": (3.0, 0.05), "head.bias": (1.0, 0.0)}


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([r"^haed\."], r"'\^haed\\\\\.' matches none; the nearest names are head\."),
        (["nothing like it"], r"matches none; the nearest names are "),
        (["head", "head.weight"], r"'head.weight' matches only weights of the groups before it"),
        (["body"], r"'body' matches frozen ones alone"),
    ],
)
def test_a_pattern_that_takes_no_effect_is_refused(patterns: list[str], said: str) -> None:
    module = nn.ModuleDict({"body": nn.Linear(3, 3).requires_grad_(False), "head": nn.Linear(3, 2)})
    with pytest.raises(BadParams, match=said):
        parameter_groups(module, Fit(groups=[Group(pattern=pattern) for pattern in patterns]))


# The choice


@pytest.mark.parametrize(
    ("make", "name", "because"),
    [
        (lambda: mlp((8,), 3), "adamw", "neither attention nor convolutions alone"),
        (lambda: resnet_cifar((8, 8, 1), 10, depth=8, width=4), "sgd", "convolutions and linear layers alone"),
        (lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True), "adamw", "has attention"),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 4), nn.MultiheadAttention(8, 2)), "adamw", "has attention"),
        (lambda: nn.Sequential(SelfAttention2d(), nn.Conv2d(3, 3, 1)), "adamw", "has attention"),
        (lambda: nn.Conv1d(1, 1, 3), "sgd", "convolutions"),
        (Mixing, "adamw", "neither"),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.LSTM(2, 2)), "adamw", "neither"),
        (lambda: nn.LayerNorm(3), "adamw", "neither"),
    ],
)
def test_auto(make: Callable[[], nn.Module], name: str, because: str) -> None:
    module = make()
    choice = choose(module, Fit(optimizer="auto"))
    assert choice.name == name
    assert because in choice.reason
    assert "lion" in choice.reason
    assert "memory is short" in choice.reason
    made = optimizer(module, Fit(optimizer="auto", lr=0.25), STEPS)
    assert type(made) is {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    assert {group["lr"] for group in made.param_groups} == {0.25}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "auto"])
def test_what_is_set_is_taken(name: Any) -> None:
    assert choose(resnet_cifar((8, 8, 1), 10, depth=8), Fit(optimizer=name)) == Choice(name, "set by optimizer")


# Against references


def test_sgd_is_nesterov_with_momentum() -> None:
    module = nn.Linear(3, 2)
    assert optimizer(module, Fit(optimizer="sgd"), STEPS).defaults["nesterov"]
    assert optimizer(module, Fit(optimizer="sgd"), STEPS).defaults["momentum"] == 0.9
    assert not optimizer(module, Fit(optimizer="sgd", momentum=0.0), STEPS).defaults["nesterov"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"optimizer": "sgd"}, lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True)),
        ({"optimizer": "sgd", "momentum": 0.5}, lambda groups: torch.optim.SGD(groups, momentum=0.5, nesterov=True)),
        ({"optimizer": "sgd", "momentum": 0.0}, lambda groups: torch.optim.SGD(groups)),
        ({"optimizer": "adam"}, lambda groups: torch.optim.Adam(groups)),
        ({"optimizer": "adam", "betas": [0.8, 0.95]}, lambda groups: torch.optim.Adam(groups, betas=(0.8, 0.95))),
        ({"optimizer": "adamw"}, lambda groups: torch.optim.AdamW(groups)),
        ({"optimizer": "adamw", "betas": [0.8, 0.95]}, lambda groups: torch.optim.AdamW(groups, betas=(0.8, 0.95))),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_torchs_own(settings: dict[str, Any], theirs: Any, dtype: torch.dtype) -> None:
    """torch's loop over single tensors, with the same groups."""
    ours, reference = small(dtype), small(dtype)
    given = Fit(lr=0.05, weight_decay=0.1, groups=[Group(pattern=r"^3\.", lr_scale=0.5)], **settings)
    take(ours, optimizer(ours, given, STEPS), given, range(STEPS))
    take(reference, theirs(parameter_groups(reference, given)), given, range(STEPS))
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert_same(ours, reference, rtol=tolerance, atol=tolerance)


def test_lion_is_the_papers() -> None:
    """Against a loop over single weights, written from algorithm 2 of the paper."""
    settings = Fit(optimizer="lion", lr=0.01, weight_decay=0.1, groups=[Group(pattern=r"^3\.", lr_scale=0.5)])
    ours, theirs = small(), small()
    take(ours, optimizer(ours, settings, STEPS), settings, range(STEPS))
    moments = {name: torch.zeros_like(weight) for name, weight in theirs.named_parameters()}
    rate = learning_rate(settings, STEPS)
    for step in range(STEPS):
        loss_of(theirs, step).backward()
        for name, weight in theirs.named_parameters():
            gradient, moment = weight.grad, moments[name]
            assert gradient is not None
            lr = rate(step) * (0.5 if name.startswith("3.") else 1.0)
            decay = 0.1 if weight.ndim >= 2 else 0.0
            flat, flat_gradient, flat_moment = weight.data.view(-1), gradient.view(-1), moment.view(-1)
            for i in range(weight.numel()):
                update = 0.9 * flat_moment[i] + 0.1 * flat_gradient[i]
                flat[i] -= lr * (torch.sign(update) + decay * flat[i])
                flat_moment[i] = 0.99 * flat_moment[i] + 0.01 * flat_gradient[i]
            weight.grad = None
    assert_same(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("limit", [1, 40, 200])
def test_lion_steps_the_same_in_blocks(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Fit(optimizer="lion", lr=0.01)
    whole, parts = small(), small()
    take(whole, optimizer(whole, settings, STEPS), settings, range(STEPS))
    monkeypatch.setattr(lion, "BLOCK_BYTES", limit)
    assert [len(block) for block in lion._blocks(list(parts.parameters()))] != [6]
    take(parts, optimizer(parts, settings, STEPS), settings, range(STEPS))
    assert_same(whole, parts, rtol=0, atol=0)


def test_lion_keeps_one_moment() -> None:
    module = small()
    made = optimizer(module, Fit(optimizer="lion"), STEPS)
    take(module, made, Fit(optimizer="lion"), range(2))
    assert [list(state) for state in made.state.values()] == [["exp_avg"]] * 6


@pytest.mark.parametrize(("share", "switch_at"), [(None, 6), (0.25, 3), (0.01, 0), (0.99, 12)])
@pytest.mark.parametrize("momentum", [None, 0.0])
def test_adam_then_sgd_is_adamw_and_then_sgd(share: float | None, switch_at: int, momentum: float | None) -> None:
    """SGD without decay and with ten times the rate; the decay before it by hand, at the schedule's rate."""
    settings = Fit(optimizer="adam_then_sgd", lr=0.01, weight_decay=0.1, switch_share=share, momentum=momentum)
    ours, theirs = small(), small()
    take(ours, optimizer(ours, settings, STEPS), settings, range(STEPS))
    groups = parameter_groups(theirs, settings)
    take(theirs, torch.optim.AdamW(groups, lr=0.01), settings, range(switch_at))
    heavy = 0.9 if momentum is None else momentum
    sgd = torch.optim.SGD(theirs.parameters(), lr=1.0, momentum=heavy, nesterov=heavy > 0)
    rate = learning_rate(settings, STEPS)
    for step in range(switch_at, STEPS):
        loss_of(theirs, step).backward()
        for weight in theirs.parameters():
            if weight.ndim >= 2:
                weight.data *= 1 - rate(step) * 0.1
        sgd.param_groups[0]["lr"] = 10 * rate(step)
        sgd.step()
        sgd.zero_grad()
    assert_same(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_scale_at_the_switch_is_the_given_one() -> None:
    module = nn.Linear(3, 2)
    settings = Fit(optimizer="adam_then_sgd", switch_share=0.001, switch_lr_scale=3.0, momentum=0.0, weight_decay=0.0)
    made = optimizer(module, settings, STEPS)
    before = weights(module)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.param_groups[0]["lr"] = made.param_groups[1]["lr"] = 0.5
    made.step()
    torch.testing.assert_close(before["weight"] - module.weight.detach(), torch.full((2, 3), 1.5))
    assert [group["lr"] for group in made.param_groups] == [0.5, 0.5]  # The schedule's, as the caller set it.


def test_the_first_phases_state_is_dropped_at_the_switch() -> None:
    module = small()
    settings = Fit(optimizer="adam_then_sgd")
    made = optimizer(module, settings, STEPS)
    take(module, made, settings, range(6))
    assert [list(state) for state in made.state.values()] == [["momentum_buffer"]] * 6
    take(module, made, settings, range(6, 7))
    assert all(state["momentum_buffer"].any() for state in made.state.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_the_fp16_scaler_skips_counts_for_nothing(name: Any) -> None:
    """As if it had never been: the same weights and the same state, and the switch at the same step taken."""
    settings = Fit(optimizer=name, switch_share=0.25 if name == "adam_then_sgd" else None)
    skipping, plain = small(torch.float32), small(torch.float32)
    states = []
    for module, steps in ((skipping, range(7)), (plain, (1, 3, 5, 6))):
        made = optimizer(module, settings, STEPS)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # Powers of two: scaling is exact.
        for step in steps:
            scaler.scale(loss_of(module, step)).backward()
            if step in (0, 2, 4):
                module[0].weight.grad[0, 0] = torch.inf
            scaler.unscale_(made)
            scaler.step(made)
            scaler.update()
            made.zero_grad(set_to_none=True)
        states.append(made.state_dict())
    assert scaler.get_scale() == 64.0  # Of the plain one.
    assert_same(skipping, plain, rtol=0, atol=0)
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_whose_gradient_comes_late(name: Any) -> None:
    module = small()
    settings = Fit(optimizer=name)
    made = optimizer(module, settings, STEPS)
    before = weights(module)
    for step in range(STEPS):
        loss_of(module, step).backward()
        if step < 3:
            module[3].weight.grad = None
        made.step()
        made.zero_grad(set_to_none=True)
        unmoved = torch.equal(module[3].weight, before["3.weight"])
        assert unmoved == (step < 3)
    assert all(torch.isfinite(weight).all() for weight in module.parameters())


# Resume


@pytest.mark.parametrize("stop", range(STEPS + 1))
@pytest.mark.parametrize("name", NAMES)
def test_resume_is_bit_exact_at_every_step(name: Any, stop: int) -> None:
    """Through a file, as plain values and tensors; the switch of adam_then_sgd lies after step 6."""
    settings = Fit(optimizer=name, lr=0.01, groups=[Group(pattern="bias", lr_scale=2.0)])
    unbroken = small(torch.float32)
    whole = optimizer(unbroken, settings, STEPS)
    take(unbroken, whole, settings, range(STEPS))
    first = small(torch.float32)
    made = optimizer(first, settings, STEPS)
    take(first, made, settings, range(stop))
    file = io.BytesIO()
    torch.save({"module": first.state_dict(), "optimizer": made.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = like(first)
    second.load_state_dict(saved["module"])
    resumed = optimizer(second, settings, STEPS)
    resumed.load_state_dict(saved["optimizer"])
    take(second, resumed, settings, range(stop, STEPS))
    assert_same(second, unbroken, rtol=0, atol=0)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("back", [0, 4, 6])
@pytest.mark.parametrize("name", NAMES)
def test_a_rollback_leaves_nothing_of_what_came_after(name: Any, back: int) -> None:
    """The same optimizer goes back, also over the switch, and takes the steps again as if for the first time."""
    settings = Fit(optimizer=name, lr=0.01)
    unbroken, module = small(torch.float32), small(torch.float32)
    take(unbroken, optimizer(unbroken, settings, STEPS), settings, range(STEPS))
    made = optimizer(module, settings, STEPS)
    take(module, made, settings, range(back))
    good = copy.deepcopy({"module": module.state_dict(), "optimizer": made.state_dict()})
    take(module, made, settings, range(back, 9))
    module.load_state_dict(good["module"])
    made.load_state_dict(good["optimizer"])
    take(module, made, settings, range(back, STEPS))
    assert_same(module, unbroken, rtol=0, atol=0)


def test_another_switch_point_is_refused() -> None:
    saved = optimizer(small(), Fit(optimizer="adam_then_sgd"), 100).state_dict()
    with pytest.raises(BadParams, match="must switch after 50 steps as when it was saved, now it is 60"):
        optimizer(small(), Fit(optimizer="adam_then_sgd"), 120).load_state_dict(saved)
