"""Normalisation by hand, and sizes by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from stages.models.counting import count
from stages.models.mlp import mlp
from stages.models.preprocess import Preprocess
from stages.models.resnet_cifar import resnet_cifar


def test_images() -> None:
    raw = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size=(5, 4, 3, 2), dtype=np.uint8))
    found = Preprocess((0.2, 0.5), (0.1, 2.0), 255.0, (4, 3, 2))(raw)
    assert found.shape == (5, 2, 4, 3)
    assert found.dtype == torch.float32
    by_hand = (raw.double() / 255 - torch.tensor([0.2, 0.5])) / torch.tensor([0.1, 2.0])
    torch.testing.assert_close(found, by_hand.permute(0, 3, 1, 2).float(), rtol=1e-5, atol=1e-5)


def test_rows_and_a_column_that_never_varies() -> None:
    raw = torch.tensor([[1.0, 3.0], [2.0, 3.0]])
    found = Preprocess((1.5, 3.0), (0.5, 0.0), 1.0, (2,))(raw)
    assert found.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_it_holds_no_weights() -> None:
    module = Preprocess((0.0,), (1.0,), 1.0, (1,))
    assert not list(module.parameters())
    assert not module.state_dict()


def test_mlp_by_hand() -> None:
    assert count(mlp((6,), 3, hidden=[10]), (6,)).macs == 6 * 10 + 10 * 3
    assert count(mlp((6,), 3, hidden=[10]), (6,)).params == 6 * 10 + 10 + 10 * 3 + 3


def test_convolutions_by_hand() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, groups=1), nn.Conv2d(8, 8, 3, padding=1, groups=4))
    assert count(module, (5, 7, 3)).macs == 5 * 7 * (9 * 3 * 8 + 9 * 2 * 8)


def test_resnet_of_the_paper() -> None:
    found = count(resnet_cifar((32, 32, 3), 10, depth=20, width=16), (32, 32, 3))
    assert found.macs == pytest.approx(41e6, rel=0.03)


def test_the_module_is_left_as_it_was() -> None:
    module = resnet_cifar((8, 8, 1), 10, depth=8, width=4)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    count(module, (8, 8, 1))
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
