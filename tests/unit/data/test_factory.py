"""A Dataset of the user's own: what it may give, and faults of it (exit 64)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.runtime.exits import BadData, BadParams
from tests.unit.data.build import prepare

MODULE = '''
import numpy as np
import torch
from PIL import Image


class Rows:
    """`give(i)` for each of `count` samples, labels 0, 1, 0, 1, ..."""

    def __init__(self, give, count=200, label=lambda i: i % 2):
        self.give, self.count, self.label = give, count, label

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.give(index), self.label(index)


class Named(Rows):
    classes = ["cat", "dog"]


def _pixels(index, *shape):
    return np.random.default_rng(index).integers(0, 256, shape, dtype=np.uint8)


def images(count=200):
    return Rows(lambda i: _pixels(i, 5, 4), count)

def named():
    return Named(lambda i: _pixels(i, 5, 4, 3))

def table():
    return Rows(lambda i: [float(i), i / 2, -1.0])

def integers():
    return Rows(lambda i: np.array([i, 2 * i]))

def tensors():
    return Rows(lambda i: torch.from_numpy(_pixels(i, 3, 5, 4)), label=lambda i: torch.tensor(i % 2))

def float_tensors():
    return Rows(lambda i: (torch.arange(6) + i).to(torch.bfloat16).requires_grad_())

def pillow():
    return Rows(lambda i: Image.fromarray(_pixels(i, 5, 4)))

def pillow_rgba():
    return Rows(lambda i: Image.fromarray(_pixels(i, 5, 4, 4)))

def dataset():
    numbers = torch.arange(400, dtype=torch.float32).reshape(200, 2)
    return torch.utils.data.TensorDataset(numbers, torch.arange(200) % 2)

def random_torch():
    return Rows(lambda i, rows=torch.randn(200, 3): rows[i])

def one_nan():
    return Rows(lambda i: [np.nan if i == 7 else float(i), 1.0])

def one_shape():
    return Rows(lambda i: np.full(3 if i == 7 else 2, float(i)))

def bad_label():
    return Rows(lambda i: [float(i)], label=lambda i: {7: "cat", 8: True, 9: None, 10: 1e9}.get(i, i % 2))

def raises():
    raise RuntimeError("no such table")

def number():
    return 5

def no_length():
    return (pair for pair in [])

def odd_length():
    class Odd:
        __len__ = lambda self: -1
        __getitem__ = lambda self, index: ([1.0], 0)
    return Odd()

def item_raises():
    return Rows(lambda i: [1.0] if i < 7 else {}["key"])

def no_pair():
    return [(np.zeros(2), 0), np.zeros(2)]

def triple():
    return [(np.zeros(2), 0, 1)]

def text():
    return Rows(lambda i: "word")

def ragged():
    return Rows(lambda i: [[1.0], [1.0, 2.0]])

def channels_first():
    return Rows(lambda i: np.zeros((3, 8, 8), np.uint8))

def channels_last_tensor():
    return Rows(lambda i: torch.zeros((8, 8, 3)))

def deep():
    return Rows(lambda i: Image.fromarray(np.zeros((4, 4), np.uint16)))

def same_names():
    found = named()
    found.classes = ["a", "a"]
    return found

def stranger_names():
    found = named()
    found.classes = 5
    return found

NOT_CALLABLE = 5
'''


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Prepares with a factory of a module that lies in the workspace, as a user's does."""
    (tmp_path / "own_data.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("import numpy\nthis is no Python")
    monkeypatch.syspath_prepend(tmp_path)

    def run(factory: str, out: str = "out", **data: Any) -> Any:
        name = factory if ":" in factory else f"own_data:{factory}"
        return prepare(tmp_path / out, source=name, path=tmp_path, **data)[0]

    return run


def test_numpy_images_with_kwargs(use: Callable[..., Any]) -> None:
    prepared = use("images", kwargs={"count": 150})
    assert (len(prepared.labels), prepared.info.shape, prepared.info.dtype) == (150, (5, 4, 1), "uint8")
    expected = np.random.default_rng(149).integers(0, 256, (5, 4), dtype=np.uint8)
    assert np.array_equal(prepared.read([149])[0, :, :, 0], expected)
    assert prepared.info.classes == ("0", "1")


def test_class_names_of_the_dataset_are_used(use: Callable[..., Any]) -> None:
    assert use("named").info.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("factory", "shape", "dtype"),
    [
        ("table", (3,), "float32"),
        ("integers", (2,), "float32"),
        ("tensors", (5, 4, 3), "uint8"),
        ("float_tensors", (6,), "float32"),
        ("pillow", (5, 4, 1), "uint8"),
        ("pillow_rgba", (5, 4, 3), "uint8"),
        ("dataset", (2,), "float32"),
    ],
)
def test_what_a_sample_may_be(use: Callable[..., Any], factory: str, shape: tuple[int, ...], dtype: str) -> None:
    prepared = use(factory)
    assert (prepared.info.shape, prepared.info.dtype, len(prepared.labels)) == (shape, dtype, 200)
    assert prepared.labels.tolist() == [i % 2 for i in range(200)]


def test_a_tensor_image_is_channels_first(use: Callable[..., Any]) -> None:
    expected = np.random.default_rng(3).integers(0, 256, (3, 5, 4), dtype=np.uint8)
    assert np.array_equal(use("tensors").read([3])[0], np.moveaxis(expected, 0, -1))


def test_a_dataset_that_draws_from_torch_is_seeded(use: Callable[..., Any]) -> None:
    one, two, other = (use("random_torch", out) for out in ("a", "b", "c"))
    assert one.info.hash == two.info.hash == other.info.hash


def test_a_long_dataset_is_written_in_chunks(use: Callable[..., Any]) -> None:
    prepared = use("images", kwargs={"count": 2500})
    expected = np.random.default_rng(2400).integers(0, 256, (5, 4), dtype=np.uint8)
    assert len(prepared.labels) == 2500
    assert np.array_equal(prepared.read([2400])[0, :, :, 0], expected)


@pytest.mark.parametrize(
    ("factory", "message", "left"),
    [
        ("one_nan", "dataset[7]: holds NaN or Inf", 199),
        ("one_shape", "dataset[7]: float32 (3,), but the first sample is float32 (2,)", 199),
        ("bad_label", "4 bad samples: dataset[7]: label 'cat' must be an integer from 0 to 199", 196),
    ],
)
def test_bad_samples_are_the_datas_fault(use: Callable[..., Any], factory: str, message: str, left: int) -> None:
    with pytest.raises(BadData) as caught:
        use(factory, "fail")
    assert message in caught.value.sentence
    assert len(use(factory, "drop", on_bad_sample="drop").labels) == left


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nowhere.at_all:make", "nowhere.at_all cannot be imported: ModuleNotFoundError"),
        ("own_broken:make", "own_broken cannot be imported: SyntaxError"),
        ("missing", "missing in own_data does not exist; it must be a function or class"),
        ("NOT_CALLABLE", "NOT_CALLABLE in own_data is not callable"),
        ("raises", "own_data:raises raised: RuntimeError: no such table"),
        ("number", "must return a Dataset with __len__ and __getitem__; got int"),
        ("no_length", "must return a Dataset with __len__ and __getitem__; got generator"),
        ("odd_length", "__len__ of what own_data:odd_length returned raised: ValueError"),
        ("item_raises", "sample 7 of own_data:item_raises raised: KeyError: 'key'"),
        ("no_pair", "sample 1 must be (sample, label); got ndarray"),
        ("triple", "sample 0 must be (sample, label); got tuple of 3"),
        ("text", "a sample must be a table's row (D,) or an image"),
        ("ragged", "sample 0: must be an array, a tensor or a PIL image"),
        ("channels_first", "looks like (C, H, W)"),
        ("channels_last_tensor", "a tensor must be (C, H, W); got (8, 8, 3)"),
        ("deep", "more than 8 bits a channel"),
        ("same_names", ".classes must be a list of names that differ"),
        ("stranger_names", ".classes must be a list of names; got int"),
    ],
)
def test_a_fault_of_the_factory_is_named(use: Callable[..., Any], factory: str, message: str) -> None:
    with pytest.raises(BadParams) as caught:
        use(factory)
    assert message in caught.value.sentence
    assert int(caught.value.code) == 64


def test_wrong_kwargs_are_the_factorys_fault(use: Callable[..., Any]) -> None:
    with pytest.raises(BadParams, match=r"own_data:images raised: TypeError.*unexpected keyword argument 'size'"):
        use("images", kwargs={"size": 5})
