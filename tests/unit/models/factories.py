"""Factories as users write them, good and bad."""

from typing import Any

import torch
from torch import Tensor, nn


def linear(classes: int, input_shape: tuple[int, ...], bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), classes, bias=bias))


def like_torchvision(*, weights: str | None = None, **kwargs: Any) -> nn.Module:
    assert weights is None
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(kwargs.pop("num_classes", 1000), **kwargs))


def not_a_module() -> dict[str, int]:
    return {"a": 1}


def raises(classes: int) -> nn.Module:
    raise RuntimeError("the file\nof weights is gone")


def demands(something: int) -> nn.Module:
    return nn.Linear(something, 2)


class Gives(nn.Module):
    """Gives whatever it is told."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, rows: Tensor) -> Any:
        given: dict[str, Any] = {
            "integers": torch.zeros((len(rows), 3), dtype=torch.int64),
            "wrong_classes": torch.zeros(len(rows), 7),
            "flat": torch.zeros(len(rows)),
            "tuple": (torch.zeros(len(rows), 3), None),
        }
        if self.what == "raises":
            raise KeyError("stem")
        return given[self.what]


class Tied(nn.Module):
    """Two names for one weight, and a statistic of its own."""

    def __init__(self, classes: int, width: int = 6) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.outer = nn.Linear(width, width, bias=False)
        self.outer.weight = self.inner.weight
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.norm(self.outer(torch.relu(self.inner(rows)))))


class Remembers(nn.Linear):
    """Keeps state that is no tensor."""

    def __init__(self, classes: int) -> None:
        super().__init__(6, classes)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


number = 3
