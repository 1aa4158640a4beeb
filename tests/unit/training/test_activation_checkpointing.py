"""Activation checkpointing: the same numbers bit for bit, computed twice; the network is left as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.checkpoints.store import Store
from stages.config.model import Model
from stages.data.prepared import Prepared
from stages.models.registry import build
from stages.runtime.exits import BadParams
from stages.training.activation_checkpointing import blocks, checkpointed
from stages.training.fit import fit
from tests.unit.training import toy


class Block(nn.Module):
    """Residual, with dropout and BatchNorm; counts its forward passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.4)
        self.passes = 0

    def forward(self, values: Tensor) -> Tensor:
        self.passes += 1
        return values + self.drop(F.relu(self.norm(self.fc(values))))


def dropping() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Sequential(Block(16), Block(16)), nn.Linear(16, 3))


def resnet() -> nn.Module:
    torch.manual_seed(1)
    return build(Model(name="resnet_cifar", kwargs={"depth": 8, "width": 4}), (8, 8, 1), 3)


def step(module: nn.Module, inputs: Tensor, *, enabled: bool) -> dict[str, Tensor]:
    """Loss, gradients and buffers of two accumulated passes."""
    module.train()
    torch.manual_seed(7)
    with checkpointed(module, enabled=enabled):
        losses = []
        for part in inputs.chunk(2):
            loss = F.cross_entropy(module(part), torch.arange(len(part)) % 3)
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        after = torch.rand(3)  # The random state went on alike.
    grads = {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return {"loss": torch.stack(losses), "random": after, **grads, **dict(module.named_buffers())}


@pytest.mark.parametrize(("make", "shape"), [(dropping, (8, 6)), (resnet, (8, 1, 8, 8))])
def test_bit_for_bit(make: Any, shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    module = make()
    found, wanted = step(module, inputs, enabled=True), step(make(), inputs, enabled=False)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
    counts = [value for name, value in found.items() if name.endswith("num_batches_tracked")]
    assert counts
    assert all(int(count) == 2 for count in counts)  # Each pass counted once.


def test_blocks_compute_twice_and_only_when_they_train() -> None:
    module = dropping()
    inner: list[Block] = list(module[2])
    step(module, torch.randn(8, 6), enabled=True)
    assert [block.passes for block in inner] == [4, 4]
    step(module, torch.randn(8, 6), enabled=False)
    assert [block.passes for block in inner] == [6, 6]
    module.eval()
    with checkpointed(module, enabled=True), torch.no_grad():
        module(torch.randn(8, 6))
    assert [block.passes for block in inner] == [7, 7]


def test_blocks_keep_no_activations() -> None:
    """Bytes that autograd saves for the backward pass."""

    def saved(*, enabled: bool) -> int:
        module, held = dropping().train(), 0
        own = {parameter.data_ptr() for parameter in module.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            nonlocal held
            held += 0 if tensor.data_ptr() in own else tensor.numel() * tensor.element_size()
            return tensor

        with checkpointed(module, enabled=enabled), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            module(torch.randn(64, 6))
        return held

    assert saved(enabled=True) < 0.5 * saved(enabled=False)


def test_the_network_is_left_clean() -> None:
    module = dropping()
    found = blocks(module)
    assert found == list(module[2])

    def look_and_fail() -> None:
        with checkpointed(module, enabled=True):
            assert all("forward" in vars(block) for block in found)
            raise KeyError

    with pytest.raises(KeyError):
        look_and_fail()
    assert all("forward" not in vars(part) for part in module.modules())


@pytest.mark.parametrize("module", [nn.Linear(6, 3), nn.Sequential(nn.Flatten(), nn.Linear(6, 3))])
def test_a_network_without_blocks_is_told(tmp_path: Path, prepared: Prepared, module: nn.Module) -> None:
    with pytest.raises(BadParams, match="activation_checkpointing needs a network of blocks"):
        fit(toy.job(tmp_path, prepared, module, settings={"activation_checkpointing": True}))


@pytest.mark.parametrize("precision", ["none", "bf16", "fp16"])
def test_a_training_with_it_is_that_without_it(tmp_path: Path, prepared: Prepared, precision: str) -> None:
    results = []
    for enabled in (False, True):
        settings = {"activation_checkpointing": enabled, "precision": precision, "epochs": 2, "ema": {"decay": 0.9}}
        job = toy.job(tmp_path / str(enabled), prepared, dropping(), settings=settings,
                      store=Store("toy", str(enabled), "c"))  # fmt: skip
        fit(job)
        results.append(toy.result(job))
        assert all("forward" not in vars(part) for part in job.module.modules())
    assert results[0] == results[1]
