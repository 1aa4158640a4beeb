"""Models on disk: the same outputs after a round trip, pruned and tied ones too; damage is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_pruning
from torch import nn

from stages.config.model import Model
from stages.models import store
from stages.models.counting import Counts
from stages.models.registry import batch_shape, build
from stages.runtime import embedding
from stages.runtime.exits import BadData

HERE = "tests.unit.models.factories"


def made(name: str, shape: tuple[int, ...], **kwargs: object) -> tuple[nn.Module, store.Spec]:
    torch.manual_seed(3)
    module = build(Model(name=name, kwargs=kwargs), shape, 5)
    for buffer in module.buffers():  # Statistics as after a training.
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return module.eval(), store.Spec(name, kwargs, shape, 5)


def assert_same(module: nn.Module, other: nn.Module, shape: tuple[int, ...]) -> None:
    inputs = torch.randn(batch_shape(shape, 4))
    with torch.no_grad():
        assert torch.equal(module(inputs), other(inputs))
    assert module.state_dict().keys() == other.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "shape", "kwargs"),
    [
        ("mlp", (6,), {"hidden": [7], "dropout": 0.1}),
        ("resnet_cifar", (8, 8, 1), {"depth": 8, "width": 4}),
        (f"{HERE}:Tied", (6,), {}),
        (f"{HERE}:like_torchvision", (6,), {}),
    ],
)
def test_round_trip(tmp_path: Path, name: str, shape: tuple[int, ...], kwargs: dict[str, object]) -> None:
    module, spec = made(name, shape, **kwargs)
    store.save(tmp_path / "a", module, spec)
    state = torch.get_rng_state()
    loaded, found = store.load(tmp_path / "a")
    assert found == spec
    assert not loaded.training
    assert torch.equal(state, torch.get_rng_state())
    assert_same(module, loaded, shape)
    store.save(tmp_path / "b", loaded, found)
    for file in (store.WEIGHTS, store.STRUCTURE):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def prune(module: nn.Module, shape: tuple[int, ...]) -> None:
    heads = [layer for layer in module.modules() if isinstance(layer, nn.Linear) and layer.out_features == 5]
    pruner = torch_pruning.pruner.MetaPruner(
        module,
        torch.zeros(batch_shape(shape, 1)),
        importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.5,
        ignored_layers=heads,
    )
    pruner.step()


@pytest.mark.parametrize(
    ("name", "shape", "kwargs"),
    [("mlp", (6,), {"hidden": [16, 8]}), ("resnet_cifar", (8, 8, 3), {"depth": 14, "width": 8})],
)
def test_pruned_round_trip(tmp_path: Path, name: str, shape: tuple[int, ...], kwargs: dict[str, object]) -> None:
    module, spec = made(name, shape, **kwargs)
    before = sum(p.numel() for p in module.parameters())
    prune(module, shape)
    assert sum(p.numel() for p in module.parameters()) < 0.6 * before
    store.save(tmp_path, module, spec)
    loaded, _ = store.load(tmp_path)
    assert_same(module, loaded, shape)
    for layer, other in zip(module.modules(), loaded.modules(), strict=True):
        if isinstance(layer, nn.Conv2d):
            assert (layer.in_channels, layer.out_channels) == (other.in_channels, other.out_channels)
    prune(loaded, shape)  # Attributes are right: it can be pruned again.
    loaded(torch.zeros(batch_shape(shape, 2)))


class Mixed(nn.Module):
    """Layers whose attributes matter in the forward pass: groups, norms."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.up = nn.ConvTranspose2d(3, width, 2, 2)
        self.group_norm = nn.GroupNorm(width // 2, width)
        self.layer_norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.group_norm(self.depthwise(self.up(images)))
        return self.fc(self.layer_norm(hidden.mean(dim=(2, 3))))


def test_attributes_that_the_forward_pass_reads(tmp_path: Path) -> None:
    small = Mixed(5, width=4).eval()  # As if every layer of the wide one had been pruned to half.
    store.save(tmp_path, small, store.Spec(f"{__name__}:Mixed", {}, (4, 4, 3), 5))
    loaded, _ = store.load(tmp_path)
    assert_same(small, loaded, (4, 4, 3))
    assert (loaded.depthwise.groups, loaded.group_norm.num_groups) == (4, 2)


def test_tied_weights_are_written_once_and_stay_tied_when_pruned(tmp_path: Path) -> None:
    small, _ = made(f"{HERE}:Tied", (4,), width=4)
    store.save(tmp_path, small, store.Spec(f"{HERE}:Tied", {"width": 4}, (4,), 5))
    described = json.loads((tmp_path / store.STRUCTURE).read_text())
    assert described["tied"] == {"outer.weight": "inner.weight"}
    described["kwargs"] = {"width": 6}  # The fresh family is wider; what was pruned is resized.
    (tmp_path / store.STRUCTURE).write_text(json.dumps(described))
    loaded, _ = store.load(tmp_path)
    assert loaded.outer.weight is loaded.inner.weight
    assert_same(small, loaded, (4,))


def truncate(folder: Path) -> None:
    path = folder / store.WEIGHTS
    path.write_bytes(path.read_bytes()[:-5])


def edit(change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        described = json.loads((folder / store.STRUCTURE).read_text())
        change(described)
        (folder / store.STRUCTURE).write_text(json.dumps(described))

    return apply


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "damaged"),
        (lambda folder: (folder / store.WEIGHTS).unlink(), "weights.safetensors is missing"),
        (lambda folder: (folder / store.STRUCTURE).unlink(), "structure.json is missing"),
        (lambda folder: (folder / store.STRUCTURE).write_text("{"), "damaged"),
        (lambda folder: (folder / store.WEIGHTS).write_bytes(b""), "damaged"),
        (edit(lambda d: d.pop("layers")), "damaged"),
        (edit(lambda d: d["layers"].update({"9": d["layers"]["1"]})), "no layer '9'"),
        (edit(lambda d: d["layers"]["1"].update(type="Conv2d")), "layer '1' must be Conv2d"),
        (edit(lambda d: d["layers"]["1"]["shapes"].update(weight=[3, 6])), "do not fit"),
        (edit(lambda d: d["layers"]["1"]["shapes"].pop("bias")), "must hold"),
        (edit(lambda d: d.update(classes=4)), "do not fit"),
        (edit(lambda d: d.update(tied={"1.weight": "x.weight"})), "do not fit"),
    ],
)
def test_damage_is_refused(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    module, spec = made("mlp", (6,), hidden=[7])
    store.save(tmp_path, module, spec)
    damage(tmp_path)
    with pytest.raises(BadData, match=said):
        store.load(tmp_path)


def test_an_embedded_identity_does_not_disturb(tmp_path: Path) -> None:
    module, spec = made("mlp", (6,))
    store.save(tmp_path, module, spec)
    embedding.embed_all(tmp_path, '{"stage":"train"}')
    assert embedding.read(tmp_path / store.WEIGHTS) == {"stage": "train"}
    assert_same(module, store.load(tmp_path)[0], (6,))


def test_status(tmp_path: Path) -> None:
    store.write_status(tmp_path, "finished", "all 3 epochs", Counts(5, 7), 0.5)
    assert store.read_status(tmp_path) == {
        "status": "finished", "reason": "all 3 epochs", "params": 5, "macs": 7, "val_accuracy": 0.5
    }  # fmt: skip
    (tmp_path / store.STATUS).write_text("[")
    with pytest.raises(BadData, match=r"status\.json cannot be read"):
        store.read_status(tmp_path)
