"""Structured pruning on small models of every kind: as far as sensible, or the reason why not."""

import copy
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stages.compression.pruning import dependencies
from stages.compression.pruning.candidates import survey
from stages.compression.pruning.plan import fitting, narrowest, removals, widths
from stages.compression.pruning.prediction import layers, predicted
from stages.compression.pruning.search import Pruned, Rules, example, shrink
from stages.config.model import Model
from stages.models import store
from stages.models.counting import count
from stages.models.registry import build
from stages.runtime.exits import GateFailed
from tests.unit.compression import zoo

RULES = Rules(importance="l2", scope="global", round_to=16)


def pruned(module: nn.Module, shape: tuple[int, ...] = zoo.IMAGE, ratio: float = 0.5, rules: Rules = RULES) -> Pruned:
    """Prunes to a share of the MACs; whatever comes, it must run, and never have grown."""
    before = count(module, shape)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    done = shrink(module, shape, before.macs * ratio, rules, time_limit_s=60.0)
    batch = example(module, shape)
    assert done.module.eval()(batch).shape == module.eval()(batch).shape
    assert done.counts == count(done.module, shape)
    assert done.counts.params <= before.params
    assert done.counts.macs <= before.macs
    assert (done.reason == "") == (done.counts.macs <= before.macs * ratio)
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items()), "the original changed"
    assert all(after % rules.round_to == 0 and after >= rules.round_to for _, after in done.kept.values())
    return done


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("importance", ["l1", "l2"])
def test_reaches_the_target_and_shapes_get_really_smaller(scope: str, importance: str) -> None:
    module = zoo.plain()
    done = pruned(module, rules=Rules(importance, scope, 8))  # type: ignore[arg-type]
    assert done.reason == ""
    assert done.kept
    assert sum(p.numel() for p in done.module.parameters()) < sum(p.numel() for p in module.parameters())
    assert shapes(done.module)["0.weight"][1] == 3, "the input is protected"
    assert shapes(done.module)["8.weight"][0] == zoo.CLASSES, "the classes are protected"


def test_prunes_no_more_than_the_target_asks_for() -> None:
    fine = pruned(zoo.plain(64), rules=Rules("l2", "global", 1))
    assert fine.counts.macs / count(zoo.plain(64), zoo.IMAGE).macs > 0.47


def test_a_target_that_holds_already_changes_nothing() -> None:
    module = zoo.plain()
    done = pruned(module, ratio=1.0)
    assert done.module is module
    assert done.kept == {}


def test_an_unreachable_target_gives_the_nearest_and_says_so() -> None:
    done = pruned(zoo.plain(), ratio=0.01)
    assert done.kept == {"0": (32, 16), "3": (64, 16)}
    assert "least width" in done.reason


def test_the_same_module_gives_the_same_copy() -> None:
    first, second = (pruned(copy.deepcopy(model)).module for model in [zoo.plain()] * 2)
    assert first is not second
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("kind", ["plain", "grouped", "depthwise", "group_norm", "flattened", "Skip", "SqueezeExcite"])
def test_channels_that_are_zero_go_first_and_leave_the_outputs_alone(kind: str) -> None:
    """Exact: with dead channels the pruned model must compute the very same function."""
    module = getattr(zoo, kind)().eval()
    found = survey(module, example(module, zoo.IMAGE), "l2", 8)
    candidate = max(found.candidates, key=lambda c: c.channels)
    size = candidate.channels // candidate.blocks
    dead = [block * size + position for block in range(candidate.blocks) for position in range(0, size, 2)]
    if kind == "group_norm":  # Dead channels count in a group's mean and spread: no exact function to compare with.
        dead = []
    kill(module, candidate.layer, dead)
    plan = {candidate.layer: dead}
    smaller = copy.deepcopy(module)
    dependencies.remove(smaller, example(module, zoo.IMAGE), plan)
    batch = torch.randn(4, 3, 8, 8)
    assert torch.allclose(smaller(batch), module(batch), atol=1e-5)
    again = survey(module, example(module, zoo.IMAGE), "l2", 8)
    (chosen,) = (c for c in again.candidates if c.layer == candidate.layer)
    assert set(dead) <= set(chosen.removed(candidate.channels - max(len(dead), candidate.unit)))


def kill(module: nn.Module, root: str, dead: list[int]) -> None:
    """Zeroes the channels in the root and everything coupled to it, outputs and inputs alike."""
    graph = dependencies.trace(module, example(module, zoo.IMAGE))
    groups = dict(dependencies.groups(graph))
    layer = module.get_submodule(root)
    group = graph.get_pruning_group(layer, graph.get_pruner_of_module(layer).prune_out_channels, dead) if dead else []
    assert root in groups
    with torch.no_grad():
        for dep, indices in group:
            target = dep.target.module
            if not isinstance(target, nn.Module) or not hasattr(target, "weight"):
                continue
            outputs = graph.is_out_channel_pruning_fn(dep.handler)
            transposed = isinstance(target, nn.ConvTranspose2d)
            norm = target.weight.ndim == 1
            grouped = isinstance(target, nn.Conv2d) and target.groups > 1
            if norm or (outputs and not transposed):
                target.weight[indices] = 0.0
            elif outputs:
                target.weight[:, indices] = 0.0
            elif transposed:
                target.weight[indices] = 0.0
            elif not grouped:
                target.weight[:, indices] = 0.0
            if (outputs or norm) and target.bias is not None:
                target.bias[indices] = 0.0


def test_layer_norm_keeps_its_channels_in_order() -> None:
    module = zoo.LayerNormMlp().eval()
    with torch.no_grad():
        module.norm.weight.copy_(torch.arange(128.0))
        module.norm.bias.copy_(-torch.arange(128.0))
    gone = [i for i in range(128) if i % 9]
    smaller = copy.deepcopy(module)
    dependencies.remove(smaller, example(module, zoo.ROW), {"enter": gone})
    kept = [i for i in range(128) if not i % 9]
    assert smaller.norm.weight.tolist() == [float(i) for i in kept]
    assert smaller.norm.bias.tolist() == [-float(i) for i in kept]
    assert torch.equal(smaller.enter.weight, module.enter.weight[kept])
    assert smaller.norm.normalized_shape == (len(kept),)


def test_grouped_convolution_is_pruned_alike_in_every_group() -> None:
    done = pruned(zoo.grouped(), rules=Rules("l2", "layer", 16))
    grouped = done.module.get_submodule("2")
    assert isinstance(grouped, nn.Conv2d)
    assert grouped.groups == 8
    assert grouped.in_channels % 8 == 0
    assert grouped.out_channels % 8 == 0
    assert grouped.out_channels < 64


def test_depthwise_convolution_follows_its_channels() -> None:
    done = pruned(zoo.depthwise())
    depthwise = done.module.get_submodule("1")
    assert isinstance(depthwise, nn.Conv2d)
    assert depthwise.groups == depthwise.in_channels == depthwise.out_channels == 16


def test_group_norm_keeps_its_groups_and_what_cannot_shrink_is_named() -> None:
    eight = pruned(zoo.group_norm(), rules=Rules("l2", "global", 8))
    norm = eight.module.get_submodule("1")
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == 6
    assert norm.num_channels == 24
    sixteen = pruned(zoo.group_norm())  # lcm(16, 6 groups) = 48: the first layer cannot shrink.
    assert "48 channels in 6 groups" in sixteen.spared["0"]


def test_tiny_net_is_left_alone_with_the_reason() -> None:
    module = zoo.plain(8)
    done = pruned(module)
    assert done.module is module
    assert "16 is the least that round_to 16 allows" in done.reason


def test_frozen_model_says_that_nothing_may_change() -> None:
    module = zoo.plain()
    for layer in list(module)[:6]:
        layer.requires_grad_(False)
    done = pruned(module)
    assert done.module is module
    assert "frozen: nothing may change it" in done.reason
    assert not any(p.requires_grad for p in module[:6].parameters())


def test_a_frozen_layer_is_kept_and_stays_frozen() -> None:
    module = zoo.plain()
    module[0].requires_grad_(False)
    done = pruned(module)
    assert done.kept == {"3": (64, done.kept["3"][1])}
    assert torch.equal(done.module.get_submodule("0").weight, module[0].weight)
    assert {n: p.requires_grad for n, p in done.module.named_parameters()} == {
        n: p.requires_grad for n, p in module.named_parameters()
    }


def test_tied_weights_are_refused_since_parameters_would_grow() -> None:
    done = pruned(zoo.Tied(free=False), zoo.ROW)
    assert done.kept == {}
    assert "shares its weights" in done.reason


def test_what_is_not_tied_is_pruned_beside_tied_weights() -> None:
    done = pruned(zoo.Tied(free=True), zoo.ROW, ratio=0.6)
    assert list(done.kept) == ["middle"]
    assert done.module.enter.weight is done.module.again.weight


def test_lstm_is_left_alone_with_the_reason() -> None:
    done = pruned(zoo.Recurrent())
    assert done.kept == {}
    assert "lstm is recurrent (LSTM)" in done.reason


def test_transformer_loses_feed_forward_and_keeps_its_heads() -> None:
    done = pruned(zoo.Encoder(), ratio=0.75)
    assert set(done.kept) == {"layers.layers.0.linear1", "layers.layers.1.linear1"}
    assert any("4 heads" in reason for reason in done.spared.values())
    attention = done.module.layers.layers[0].self_attn
    assert (attention.embed_dim, attention.num_heads) == (32, 4)
    assert done.counts.macs < 0.75 * count(zoo.Encoder(), zoo.IMAGE).macs


def test_fused_attention_that_breaks_is_spared_and_the_rest_is_pruned() -> None:
    done = pruned(zoo.FusedAttention(), ratio=0.8)
    assert "no longer runs" in done.spared["qkv"]
    assert "hidden" in done.kept


def test_pixel_shuffle_is_spared_and_the_rest_is_pruned() -> None:
    done = pruned(zoo.Shuffled(), ratio=0.8)
    assert "wide" in done.spared
    assert list(done.kept) == ["narrow"]


def test_a_width_in_the_forward_is_found_even_where_only_the_batch_would_change() -> None:
    done = pruned(zoo.HardCoded())
    assert done.kept == {}
    assert "no longer runs" in done.reason


def test_a_convolution_used_twice_stays_one() -> None:
    done = pruned(zoo.UsedTwice())
    assert done.kept == {"shared": (32, 16)}
    assert len([m for m in done.module.modules() if isinstance(m, nn.Conv2d)]) == 2


class Slow(nn.Module):
    """Takes its time whenever gradients are on: what tracing waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, zoo.CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            end = time.monotonic() + 300.0
            while time.monotonic() < end:
                time.sleep(0.01)
        return self.head(rows)


def test_the_pruner_has_a_time_limit() -> None:
    module = Slow()
    started = time.monotonic()
    with pytest.raises(GateFailed, match=r"not through with the model after 0\.3 s; raise prune\.time_limit_s"):
        shrink(module, zoo.ROW, 1.0, RULES, time_limit_s=0.3)
    assert time.monotonic() - started < 150.0, "it did not wait for the model"
    assert module.head.weight.requires_grad


class Dropping(nn.Module):
    """Leaves the graph that autograd records: nothing can be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 64)
        self.leave = nn.Linear(64, zoo.CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        return self.leave(self.enter(rows).detach()).detach()


def test_a_model_that_cannot_be_followed_is_left_alone_with_the_reason() -> None:
    done = pruned(Dropping(), zoo.ROW)
    assert done.kept == {}
    assert "no convolution and no linear layer in it leads to its outputs" in done.reason


def test_weights_that_are_not_finite_are_named() -> None:
    module = zoo.plain()
    with torch.no_grad():
        module[3].weight[0, 0, 0, 0] = float("nan")
    found = survey(module, example(module, zoo.IMAGE), "l2", 16)
    assert found.spared["3"] == "its weights are not finite"


def test_the_pruned_structure_comes_back_without_the_pruner(tmp_path: Path) -> None:
    kwargs = {"depth": 8, "width": 32}
    module = build(Model(name="resnet_cifar", kwargs=kwargs), (8, 8, 1), 10).eval()
    before = count(module, (8, 8, 1))
    done = shrink(module, (8, 8, 1), before.macs * 0.5, RULES, time_limit_s=60.0)
    store.save(tmp_path, done.module, store.Spec("resnet_cifar", kwargs, (8, 8, 1), 10))
    code = (
        "import sys, torch; from pathlib import Path; from stages.models.store import load\n"
        f"module, _ = load(Path({str(tmp_path)!r}))\n"
        "assert 'torch_pruning' not in sys.modules\n"
        "torch.manual_seed(0); print(module(torch.randn(3, 1, 8, 8)).flatten().tolist())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    torch.manual_seed(0)
    expected = done.module.eval()(torch.randn(3, 1, 8, 8)).flatten().tolist()
    assert [float(v) for v in said.strip("[]\n").split(",")] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert done.counts.macs <= before.macs * 0.5


KINDS = ("plain", "grouped", "depthwise", "group_norm", "flattened", "Skip", "SqueezeExcite", "UsedTwice", "Encoder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.2, 0.7])
def test_predicted_macs_are_those_that_are_counted(kind: str, ratio: float) -> None:
    module = getattr(zoo, kind)()
    before, batch = count(module, zoo.IMAGE), example(module, zoo.IMAGE)
    found = survey(module, batch, "l2", 8)
    kept = widths(found.candidates, ratio, "global")
    smaller = copy.deepcopy(module)
    dependencies.remove(smaller, batch, removals(found.candidates, kept))
    guess = predicted(before.macs, layers(module, batch), found.candidates, kept)
    assert guess == pytest.approx(count(smaller, zoo.IMAGE).macs)
    assert guess < before.macs


def test_widths_never_grow_with_the_ratio() -> None:
    module = zoo.plain(64)
    candidates = survey(module, example(module, zoo.IMAGE), "l2", 8).candidates
    for scope in ("global", "layer"):
        steps = [widths(candidates, ratio / 20, scope) for ratio in range(21)]
        assert steps[0] == tuple(c.channels for c in candidates)
        assert steps[-1] == tuple(c.least for c in candidates)
        assert all(a >= b for one, other in pairwise(steps) for a, b in zip(one, other, strict=True))


def test_widths_that_fit_are_the_widest_of_their_neighbours() -> None:
    module = zoo.plain(64)
    candidates = survey(module, example(module, zoo.IMAGE), "l2", 8).candidates
    bound = 100.0
    kept = fitting(candidates, "global", lambda w: float(sum(w)), bound)
    assert sum(kept) <= bound
    assert sum(kept) + min(c.unit for c in candidates) > bound
    assert fitting(candidates, "global", lambda w: float(sum(w)), 1.0) == narrowest(candidates)
