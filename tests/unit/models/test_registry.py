"""Families and factories: what is built, and one clear sentence for every kind of mistake."""

import pytest
import torch
from torch import nn

from stages.config.model import Model
from stages.models.registry import batch_shape, build, look_up
from stages.runtime.exits import BadParams

HERE = "tests.unit.models.factories"


@pytest.mark.parametrize("shape", [(8, 8, 1), (28, 28, 1), (9, 7, 3)])
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("resnet_cifar", {"depth": 8, "width": 4}), ("resnet_cifar", {"depth": 14, "width": 3}), ("mlp", {"hidden": []})],
)
def test_families_take_any_image(name: str, kwargs: dict[str, object], shape: tuple[int, ...]) -> None:
    module = build(Model(name=name, kwargs=kwargs), shape, 4)
    assert module.training
    assert module(torch.randn(batch_shape(shape, 3))).shape == (3, 4)


def test_mlp_takes_rows() -> None:
    module = build(Model(name="mlp", kwargs={"hidden": [5, 4], "dropout": 0.5}), (6,), 3)
    assert [type(layer).__name__ for layer in module] == [
        "Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"
    ]  # fmt: skip


def test_resnet_depth_is_6n_plus_2() -> None:
    module = build(Model(name="resnet_cifar", kwargs={"depth": 20, "width": 16}), (32, 32, 3), 10)
    convolutions = [m for m in module.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == 20
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(272474, rel=0.02)  # 0.27 M in the paper


@pytest.mark.parametrize("name", ["linear", "like_torchvision"])
def test_import_path_gets_what_it_takes(name: str) -> None:
    module = build(Model(name=f"{HERE}:{name}", kwargs={"bias": False}), (2, 3, 1), 3)
    assert module(torch.zeros(5, 1, 2, 3)).shape == (5, 3)
    assert module[1].bias is None


def test_build_depends_on_the_seed_alone_and_the_trial_leaves_no_trace() -> None:
    torch.manual_seed(7)
    first = build(Model(name="mlp"), (6,), 3)
    after = torch.rand(3)
    torch.manual_seed(7)
    second = build(Model(name="mlp", kwargs={"hidden": [128]}), (6,), 3)
    assert torch.equal(first[1].weight, second[1].weight)
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (Model(name="resnet_cifr"), (8, 8, 1), "did you mean 'resnet_cifar'"),
        (Model(name="transformer"), (8, 8, 1), "known: mlp, resnet_cifar, or package.module:factory"),
        (Model(name="mlp", kwargs={"hiden": [3]}), (6,), "did you mean 'hidden'\\? allowed: dropout, hidden"),
        (Model(name="mlp", kwargs={"classes": 3}), (6,), "takes no argument 'classes'"),
        (Model(name="mlp", kwargs={"hidden": "wide"}), (6,), "hidden must be a list"),
        (Model(name="mlp", kwargs={"hidden": 5}), (6,), "hidden must be a list .*, got 5"),
        (Model(name="mlp", kwargs={"dropout": 1.5}), (6,), "dropout must lie in"),
        (Model(name="resnet_cifar", kwargs={"depth": 9}), (8, 8, 1), "depth must be 6n \\+ 2"),
        (Model(name="resnet_cifar", kwargs={"width": "w"}), (8, 8, 1), "width must be"),
        (Model(name="resnet_cifar"), (6,), "takes images"),
        (Model(name="no.such.module:factory"), (6,), "cannot be imported: ModuleNotFoundError"),
        (Model(name=f"{HERE}:liner"), (6,), "has no 'liner'; did you mean 'linear'"),
        (Model(name=f"{HERE}:number"), (6,), "must name a function or class, it is int"),
        (Model(name=f"{HERE}:a b"), (6,), "must read package.module:factory"),
        (Model(name="../x:y"), (6,), "must read package.module:factory"),
        (Model(name=f"{HERE}:not_a_module"), (6,), "must give a torch.nn.Module, it gave dict"),
        (Model(name=f"{HERE}:raises"), (6,), "RuntimeError: the file of weights is gone"),
        (Model(name=f"{HERE}:demands"), (6,), "needs something in model.kwargs"),
        (Model(name=f"{HERE}:demands", kwargs={"something": 6, "more": 1}), (6,), "no argument 'more'"),
        (Model(name=f"{HERE}:demands", kwargs={"something": 6}), (6,), "it gave float32 \\(2, 2\\)"),
        (Model(name=f"{HERE}:demands", kwargs={"something": 5}), (6,), "its forward raised RuntimeError"),
        (Model(name=f"{HERE}:Gives", kwargs={"what": "integers"}), (6,), "it gave int64"),
        (Model(name=f"{HERE}:Gives", kwargs={"what": "wrong_classes"}), (6,), "it gave float32 \\(2, 7\\)"),
        (Model(name=f"{HERE}:Gives", kwargs={"what": "flat"}), (6,), "it gave float32 \\(2,\\)"),
        (Model(name=f"{HERE}:Gives", kwargs={"what": "tuple"}), (6,), "it gave tuple"),
        (Model(name=f"{HERE}:Remembers"), (6,), "must keep its state in tensors alone, _extra_state is none"),
        (Model(name=f"{HERE}:Gives", kwargs={"what": "raises"}), (6,), "its forward raised KeyError"),
    ],
)
def test_mistakes_are_one_sentence(model: Model, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(BadParams, match=said) as caught:
        build(model, shape, 3)
    assert "\n" not in caught.value.sentence


@pytest.mark.parametrize("kwargs", [{"hidden": [0]}, {"hidden": 5}, {"dropout": 2}])
def test_the_arguments_of_a_known_family_are_looked_at_without_data(kwargs: dict[str, object]) -> None:
    with pytest.raises(BadParams, match="cannot be built"):
        look_up(Model(name="mlp", kwargs=kwargs))


def test_looking_up_draws_no_random_number_and_calls_no_factory_of_the_user_s() -> None:
    state = torch.get_rng_state()
    look_up(Model(name="resnet_cifar"))
    look_up(Model(name=f"{HERE}:raises"))
    assert torch.equal(torch.get_rng_state(), state)
