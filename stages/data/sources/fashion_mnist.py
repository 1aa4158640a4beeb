"""Source `fashion_mnist`: the four IDX files as they are published; the official test set stays the test set."""

from pathlib import Path

from stages.data.sources.base import Block, InMemory, require_folder
from stages.data.sources.idx import find_idx, read_idx
from stages.runtime.exits import BadData

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
"""Xiao, Rasul and Vollgraf, Fashion-MNIST (2017), table 2."""


def open_fashion_mnist(folder: Path) -> InMemory:
    """Reads train-* and t10k-* (IDX or IDX.gz) in a folder. Raises `BadData`."""
    require_folder(folder, "the folder with the four Fashion-MNIST files (IDX or IDX.gz)")
    blocks = (_block(folder, "train", official_test=False), _block(folder, "t10k", official_test=True))
    first, test = (block.samples.shape[1:] for block in blocks)
    if first != test:
        raise BadData(f"{folder}: train images are {first}, test images {test}; both must have one size")
    return InMemory(blocks, CLASSES)


def _block(folder: Path, prefix: str, *, official_test: bool) -> Block:
    image_path = find_idx(folder, f"{prefix}-images-idx3-ubyte")
    label_path = find_idx(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if len(images) != len(labels):
        raise BadData(f"{folder}: {image_path.name} has {len(images)} images, {label_path.name} {len(labels)} labels")
    return Block(images[..., None], labels, image_path.name, official_test)
