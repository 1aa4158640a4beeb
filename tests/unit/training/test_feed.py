"""The feed: equal whatever the workers, the micro-batch and the window it starts from; skipped samples are not read."""

import doctest
from collections.abc import Iterator, Sequence
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.config.augment import Augment
from stages.data.augment import Augmenter
from stages.data.loaders import LoaderSettings, batches_of, describe, epoch_order
from stages.data.prepared import Prepared
from stages.models.preprocess import Preprocess
from stages.runtime.exits import BadData
from stages.runtime.files import read_json
from stages.training import feed as feed_module
from stages.training.feed import feed, window_ids
from stages.training.windows import micro_sizes, window_sizes
from tests.unit.data.build import prepare, random_images, write_folder, write_npz

SEED, EPOCH, BATCH = 3, 2, 8
LOADERS = [LoaderSettings(0), LoaderSettings(2), LoaderSettings(2, False)]
AUGMENTS = {
    "plain": None,
    "augmented": Augment(flip=True, crop=2, cutout=3),
    "mixed": Augment(flip=True, crop=1, mixup=0.4),
}


@pytest.fixture(scope="module")
def array(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("array")
    images, labels = random_images(72)
    return prepare(folder, source="npz", path=write_npz(folder / "a.npz", images=images, labels=labels))[0]


@pytest.fixture
def files(tmp_path: Path) -> Prepared:
    images, labels = random_images(60)
    raw = write_folder(tmp_path / "raw", images, labels)
    return prepare(tmp_path / "files", source="image_folder", path=raw, grayscale=True)[0]


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    assert active_children() == []


def augmenter(prepared: Prepared, settings: Augment | None) -> Augmenter | None:
    return settings and Augmenter(settings, prepared.info.shape, SEED, prepared.indices("train"))


def start(prepared: Prepared, sizes: Sequence[int], first_window: int = 0, **changes: Any) -> Any:
    chosen = {"micro_batch": 3, "loader": LoaderSettings(), "augmenter": None, "epoch": EPOCH, "seed": SEED, **changes}
    return feed(prepared, sizes, first_window=first_window, **chosen)


def joined(batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    raw, labels = zip(*batches, strict=True)
    return torch.cat(raw), torch.cat(labels)


def plan(prepared: Prepared, batch_size: int = BATCH) -> list[int]:
    return window_sizes(len(prepared.indices("train")), batch_size)


@pytest.mark.parametrize("kind", list(AUGMENTS))
@pytest.mark.parametrize("loader", LOADERS, ids=describe)
def test_equal_from_any_window_with_any_workers_and_micro_batch(
    array: Prepared, kind: str, loader: LoaderSettings
) -> None:
    changer, sizes = augmenter(array, AUGMENTS[kind]), plan(array)
    raw, labels = joined(start(array, sizes, augmenter=changer))
    assert len(labels) == sum(sizes)
    for first_window, micro_batch in [(0, 1), (1, 3), (3, 4), (len(sizes) - 1, 8), (2, 100)]:
        state = torch.get_rng_state()
        found = list(start(array, sizes, first_window, augmenter=changer, loader=loader, micro_batch=micro_batch))
        assert torch.equal(torch.get_rng_state(), state)
        left = [size for window in sizes[first_window:] for size in micro_sizes(window, micro_batch)]
        assert [len(batch_labels) for _, batch_labels in found] == left
        for whole, part in zip((raw, labels), joined(iter(found)), strict=True):
            assert part.dtype == whole.dtype
            assert torch.equal(part, whole[sum(sizes[:first_window]) :])


def test_plain_samples_are_those_of_the_epochs_order(array: Prepared) -> None:
    order = epoch_order(array.indices("train"), SEED, EPOCH)
    raw, labels = joined(start(array, plan(array)))
    assert raw.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert np.array_equal(raw.numpy(), array.read(order))
    assert np.array_equal(labels.numpy(), array.labels[order])


def test_window_ids_are_the_samples_of_the_window(array: Prepared) -> None:
    sizes = plan(array)
    each = [window_ids(array, sizes, SEED, EPOCH, window) for window in range(len(sizes))]
    assert [len(ids) for ids in each] == sizes
    assert np.array_equal(np.concatenate(each), epoch_order(array.indices("train"), SEED, EPOCH))
    raw, _ = next(start(array, sizes, 2, micro_batch=BATCH))
    assert np.array_equal(raw.numpy(), array.read(each[2]))


def test_augmented_samples_are_what_the_augmenter_makes_of_them(array: Prepared) -> None:
    changer = augmenter(array, AUGMENTS["augmented"])
    assert changer is not None
    order = epoch_order(array.indices("train"), SEED, EPOCH)
    plain = torch.from_numpy(array.read(order))
    raw, labels = joined(start(array, plan(array), augmenter=changer))
    assert not torch.equal(raw, plain)
    assert torch.equal(raw, changer.apply(plain, order, EPOCH))
    assert np.array_equal(labels.numpy(), array.labels[order])


def test_mixed_samples_and_their_partners_are_both_augmented_before_mixing(array: Prepared) -> None:
    changer = augmenter(array, AUGMENTS["mixed"])
    assert changer is not None
    ids = epoch_order(array.indices("train"), SEED, EPOCH)
    partners = changer.partners(ids, EPOCH)
    own, other = (changer.apply(torch.from_numpy(array.read(each)), each, EPOCH) for each in (ids, partners))
    labels, other_labels = (torch.from_numpy(array.labels[each]) for each in (ids, partners))
    expected = changer.mix(own, other, labels, other_labels, ids, EPOCH, 3)
    found = joined(start(array, plan(array), augmenter=changer))
    assert (found[0].dtype, found[1].dtype) == (torch.float32, torch.float32)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert found[1].shape == (len(ids), 3)


@pytest.mark.parametrize("loader", LOADERS, ids=describe)
@pytest.mark.parametrize("kind", ["plain", "augmented"])
def test_skipped_samples_are_not_read(files: Prepared, loader: LoaderSettings, kind: str) -> None:
    sizes, changer = plan(files), augmenter(files, AUGMENTS[kind])
    whole = joined(start(files, sizes, 3, augmenter=changer))
    paths = read_json(files.folder / "files.json")
    for window in range(3):
        for index in window_ids(files, sizes, SEED, EPOCH, window):
            (Path(str(files.info.root)) / paths[index]["path"]).unlink()
    found = joined(start(files, sizes, 3, loader=loader, augmenter=changer))
    assert torch.equal(found[0], whole[0])
    assert torch.equal(found[1], whole[1])
    with pytest.raises(BadData, match="data changed between stages: the file is gone"):
        next(start(files, sizes, 2, loader=loader, augmenter=changer))


@pytest.mark.parametrize("loader", LOADERS, ids=describe)
def test_data_smaller_than_a_batch_and_a_last_sample_alone(array: Prepared, loader: LoaderSettings) -> None:
    samples = len(array.indices("train"))
    for batch_size, expected in [
        (samples + 40, [samples]),
        (samples - 1, [samples]),
        (samples - 2, [samples - 2, 2]),
        ((samples - 1) // 2, [(samples - 1) // 2, samples - (samples - 1) // 2]),
    ]:
        sizes = plan(array, batch_size)
        found = [len(labels) for _, labels in start(array, sizes, micro_batch=batch_size, loader=loader)]
        assert found == sizes == expected


@pytest.mark.parametrize("kind", list(AUGMENTS))
def test_closing_it_early_ends_the_workers(array: Prepared, kind: str) -> None:
    stream = start(array, plan(array), loader=LoaderSettings(2), augmenter=augmenter(array, AUGMENTS[kind]))
    next(stream)
    assert len(active_children()) == 2
    stream.close()
    assert active_children() == []


def test_epochs_and_seeds_differ(array: Prepared) -> None:
    sizes, changer = plan(array), augmenter(array, AUGMENTS["augmented"])
    first = joined(start(array, sizes, augmenter=changer))[0]
    assert torch.equal(first, joined(start(array, sizes, augmenter=changer))[0])
    assert not torch.equal(first, joined(start(array, sizes, augmenter=changer, epoch=EPOCH + 1))[0])
    assert not torch.equal(first, joined(start(array, sizes, augmenter=changer, seed=SEED + 1))[0])


def test_nothing_is_left_after_the_last_window(array: Prepared) -> None:
    sizes = plan(array)
    assert list(start(array, sizes, len(sizes), loader=LoaderSettings(2))) == []


def test_windows_that_do_not_fit_the_data_are_refused(array: Prepared) -> None:
    sizes = plan(array)
    with pytest.raises(ValueError, match=f"first_window must be in 0..{len(sizes)}; got {len(sizes) + 1}"):
        next(start(array, sizes, len(sizes) + 1))
    with pytest.raises(ValueError, match="each of the"):
        next(start(array, sizes[:-1]))


@pytest.mark.parametrize("loader", LOADERS, ids=describe)
def test_batches_of_parts_of_unequal_size(array: Prepared, loader: LoaderSettings) -> None:
    parts = [np.array(part) for part in ([5, 1], [7], [2, 2, 9, 0], [3, 4])]
    found = list(batches_of(array, parts, loader))
    assert len(found) == len(parts)
    for part, (raw, labels) in zip(parts, found, strict=True):
        assert np.array_equal(raw.numpy(), array.read(part))
        assert np.array_equal(labels.numpy(), array.labels[part])


def test_preprocessing_takes_mixed_images_as_it_takes_bytes(array: Prepared) -> None:
    info = array.info
    preprocess = Preprocess(info.mean, info.std, info.scale, info.shape)
    raw = torch.from_numpy(array.read(np.arange(20)))
    assert torch.equal(preprocess(raw), preprocess(raw.float()))


def test_the_example(array: Prepared) -> None:
    (example,) = [found for found in doctest.DocTestFinder(recurse=False).find(feed_module) if found.examples]
    example.globs.update(prepared=array, LoaderSettings=LoaderSettings, window_sizes=window_sizes)
    outcome = doctest.DocTestRunner().run(example)
    assert (outcome.attempted, outcome.failed) == (3, 0)
