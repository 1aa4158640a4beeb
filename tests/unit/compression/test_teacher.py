"""The teacher: in evaluation mode, without gradients, and asked about each sample once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stages.compression.distillation.teacher import Teacher
from stages.data.loaders import batches
from stages.models.preprocess import Preprocess
from tests.unit.compression.pipeline import Folder, make


class Counting(nn.Module):
    """Counts the samples that pass; dropout shows whether it is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 4))
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return self.layers(images)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return make(tmp_path)


@pytest.fixture
def preprocess(folder: Folder) -> Preprocess:
    info = folder.opened().info
    return Preprocess(info.mean, info.std, info.scale, info.shape)


def test_answers_as_the_network_does_and_asks_once(folder: Folder, preprocess: Preprocess) -> None:
    prepared, module = folder.opened(), Counting().train()
    teacher = Teacher(module, preprocess, prepared)
    train = prepared.indices("train")
    for _ in range(3):
        for raw, _labels in batches(prepared, train[::-1], 7):
            answer = teacher(raw)
            assert not answer.requires_grad
            assert torch.allclose(answer, module.layers(preprocess(raw)), atol=1e-5)
    assert module.seen == len(train)
    assert not module.training


def test_an_answer_does_not_depend_on_the_batch(folder: Folder, preprocess: Preprocess) -> None:
    prepared, module = folder.opened(), Counting()
    raw = torch.from_numpy(prepared.read(prepared.indices("train")[:9]))
    whole = Teacher(module, preprocess, prepared)(raw)
    later = Teacher(module, preprocess, prepared)
    parts = torch.cat([later(raw[5:]), later(raw[:5])])
    assert torch.equal(torch.cat([whole[5:], whole[:5]]), parts)


def test_a_sample_that_is_not_of_the_train_split_goes_through_the_network(
    folder: Folder, preprocess: Preprocess
) -> None:
    prepared, module = folder.opened(), Counting()
    teacher = Teacher(module, preprocess, prepared)
    raw = torch.from_numpy(prepared.read(prepared.indices("train")[:4]))
    raw[1] = 255 - raw[1]
    assert torch.allclose(teacher(raw), module.layers(preprocess(raw)), atol=1e-6)
    assert module.seen == len(prepared.indices("train")) + 4
