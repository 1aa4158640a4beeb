"""Augmentation: exact against plain loops, the same in every batch, spread as it should be, never in place."""

import doctest
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.config.augment import Augment
from stages.data import augment as augment_module
from stages.data.augment import Augmenter, cropped, cut_out, flipped, splitmix64, symmetric_beta_quantiles
from stages.runtime.exits import BadParams
from stages.runtime.seeds import derive

IDS = np.arange(4000) * 3 + 1
MASK = 2**64 - 1


def make(shape: tuple[int, ...] = (6, 7, 2), seed: int = 0, **settings: Any) -> Augmenter:
    return Augmenter(Augment(**settings), shape, seed, IDS)


def images(count: int, shape: tuple[int, ...] = (6, 7, 2), dtype: torch.dtype = torch.uint8) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(1, 256, (count, *shape), generator=generator)
    return (whole - 128).to(dtype) / 7 if dtype.is_floating_point else whole.to(dtype)


def hashed(seed: int, purpose: str, epoch: int, sample: int) -> int:
    """SplitMix64 in plain integers."""
    z = (derive(seed, "augment", purpose, epoch) + (sample + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def by_hand(raw: Tensor, ids: np.ndarray, epoch: int, seed: int, settings: Augment) -> np.ndarray:
    """Pixel by pixel."""
    _, height, width, _ = raw.shape
    result = np.zeros_like(raw.numpy())
    for row, sample in enumerate(ids.tolist()):
        draw: Callable[[str, int], int] = lambda purpose, count, sample=sample: (  # noqa: E731
            hashed(seed, purpose, epoch, sample) % count
        )
        span = 2 * settings.crop + 1
        down, right = draw("crop y", span) - settings.crop, draw("crop x", span) - settings.crop
        top = draw("cutout y", height) - settings.cutout // 2
        left = draw("cutout x", width) - settings.cutout // 2
        mirrored = settings.flip and draw("flip", 2) == 1
        for y in range(height):
            for x in range(width):
                if top <= y < top + settings.cutout and left <= x < left + settings.cutout:
                    continue
                from_y, from_x = y + down, x + right
                if 0 <= from_y < height and 0 <= from_x < width:
                    result[row, y, x] = raw[row, from_y, width - 1 - from_x if mirrored else from_x].numpy()
    return result


def test_flip_crop_and_cutout_of_one_small_image() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 3, 3, 1)

    def shown(changed: Tensor) -> list[list[int]]:
        return changed[0, :, :, 0].tolist()

    assert shown(flipped(image, torch.tensor([True]))) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert shown(flipped(image, torch.tensor([False]))) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert shown(cropped(image, torch.tensor([0]), torch.tensor([2]), 1)) == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]
    assert shown(cropped(image, torch.tensor([1]), torch.tensor([1]), 1)) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert shown(cut_out(image, torch.tensor([2]), torch.tensor([1]), 2)) == [[1, 2, 3], [0, 0, 6], [0, 0, 9]]
    assert shown(cut_out(image, torch.tensor([0]), torch.tensor([2]), 2)) == [[1, 0, 0], [4, 5, 6], [7, 8, 9]]
    assert shown(cut_out(image, torch.tensor([0]), torch.tensor([0]), 1)) == [[0, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert shown(image) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.int16])
@pytest.mark.parametrize(
    "settings",
    [
        {"flip": True},
        {"crop": 2},
        {"crop": 5},
        {"cutout": 1},
        {"cutout": 3},
        {"cutout": 4},
        {"flip": True, "crop": 1, "cutout": 5},
    ],
    ids=str,
)
def test_equal_to_a_plain_loop(settings: dict[str, Any], dtype: torch.dtype) -> None:
    raw, ids = images(40, dtype=dtype), IDS[100:140]
    before = raw.clone()
    changed = make(seed=5, **settings).apply(raw, ids, 3)
    assert changed.dtype == dtype
    assert changed.is_contiguous()
    assert torch.equal(raw, before), "the input must stay as it is"
    assert np.array_equal(changed.numpy(), by_hand(raw, ids, 3, 5, Augment(**settings)))


def test_splitmix64_gives_its_published_numbers() -> None:
    assert splitmix64(0, np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(1234567, np.arange(2)).tolist() == [6457827717110365317, 3203168211198807973]


def test_the_same_in_every_batch_and_order() -> None:
    changer = make(flip=True, crop=2, cutout=3)
    raw, ids = images(50), IDS[:50]
    whole = changer.apply(raw, ids, 1)
    order = np.random.default_rng(0).permutation(50)
    assert torch.equal(changer.apply(raw[order], ids[order], 1), whole[order])
    for row in range(0, 50, 7):
        assert torch.equal(changer.apply(raw[row : row + 1], ids[row : row + 1], 1), whole[row : row + 1])
    assert changer.apply(raw[:0], ids[:0], 1).shape == (0, 6, 7, 2)


def test_epochs_seeds_and_samples_differ() -> None:
    changer, raw = make(flip=True, crop=2, cutout=3), images(1).expand(50, 6, 7, 2)
    first = changer.apply(raw, IDS[:50], 1)
    assert torch.equal(first, make(flip=True, crop=2, cutout=3).apply(raw, IDS[:50], 1))
    assert len(torch.unique(first, dim=0)) > 40
    assert not torch.equal(first, changer.apply(raw, IDS[:50], 2))
    assert not torch.equal(first, make(seed=1, flip=True, crop=2, cutout=3).apply(raw, IDS[:50], 1))


def test_about_half_are_flipped_and_epochs_are_independent() -> None:
    raw = torch.zeros((len(IDS), 2, 2, 1), dtype=torch.uint8)
    raw[:, :, 0] = 1
    changer = make((2, 2, 1), flip=True)
    once, again = (changer.apply(raw, IDS, epoch)[:, 0, 1, 0].double() for epoch in (1, 2))
    assert 0.47 < float(once.mean()) < 0.53
    assert 0.22 < float((once * again).mean()) < 0.28


def test_all_shifts_occur_about_as_often() -> None:
    raw = torch.zeros((len(IDS), 5, 5, 1), dtype=torch.uint8)
    raw[:, 2, 2] = 1
    places = make((5, 5, 1), crop=2).apply(raw, IDS, 1)[..., 0].sum(dim=0)
    assert int(places.sum()) == len(IDS), "a shift of 2 keeps the middle pixel"
    assert int(places.min()) > 100
    assert int(places.max()) < 230  # 160 expected in each of 25 places; the standard deviation is 12.


def test_cutout_reaches_every_pixel_and_is_clipped_at_the_border() -> None:
    cut = make((6, 6, 1), cutout=4).apply(torch.ones((len(IDS), 6, 6, 1)), IDS, 1)[..., 0] == 0
    areas = cut.sum(dim=(1, 2)).tolist()
    assert set(areas) == {a * b for a in (2, 3, 4) for b in (2, 3, 4)}
    assert int(cut.any(dim=0).sum()) == 36


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_mixup_mixes_images_and_labels_by_the_same_share(dtype: torch.dtype) -> None:
    changer, ids = make(mixup=0.4), IDS[:200]
    assert changer.mixes
    raw, other = images(200, dtype=dtype), images(200, dtype=dtype).flip(0)
    labels = torch.arange(200) % 3
    mixed, soft = changer.mix(raw, other, labels, (labels + 1) % 3, ids, 4, 3)
    assert (mixed.dtype, soft.dtype) == (torch.float32, torch.float32)
    assert torch.equal(soft.sum(dim=1), torch.ones(200)), "exactly 1"
    share = soft[torch.arange(200), labels]
    assert 0.0 <= float(share.min()) < 0.1
    assert 0.9 < float(share.max()) <= 1.0
    assert torch.equal(soft[torch.arange(200), (labels + 1) % 3], 1 - share)
    exact = share.double().view(-1, 1, 1, 1)
    expected = exact * raw.double() + (1 - exact) * other.double()
    assert torch.allclose(mixed.double(), expected, rtol=0, atol=1e-4)
    _, same = changer.mix(raw, other, labels, labels, ids, 4, 3)
    assert torch.equal(same, torch.nn.functional.one_hot(labels, 3).float())


def test_mixup_is_the_same_in_every_batch() -> None:
    changer, raw, labels = make(mixup=0.2), images(60), torch.arange(60) % 4
    whole = changer.mix(raw, raw.flip(0), labels, labels.flip(0), IDS[:60], 2, 4)
    part = slice(13, 14)
    alone = changer.mix(raw[part], raw.flip(0)[part], labels[part], labels.flip(0)[part], IDS[part], 2, 4)
    assert torch.equal(alone[0], whole[0][part])
    assert torch.equal(alone[1], whole[1][part])
    assert np.array_equal(changer.partners(IDS[part], 2), changer.partners(IDS[:60], 2)[part])
    next_epoch = changer.mix(raw, raw.flip(0), labels, labels.flip(0), IDS[:60], 3, 4)
    assert not torch.equal(next_epoch[0], whole[0])


def test_partners_come_from_the_train_split_and_spread_over_it() -> None:
    train = np.array([2, 3, 5, 7, 11, 13])
    changer = Augmenter(Augment(mixup=1.0), (6, 6, 1), 0, train)
    found = changer.partners(IDS, 1)
    assert found.dtype == np.int64
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == train.tolist()
    assert counts.min() > 550
    assert counts.max() < 790  # 667 expected, standard deviation 24.
    assert not np.array_equal(found, changer.partners(IDS, 2))
    assert found[:8].tolist() == changer.partners(IDS[:8], 1).tolist()


EXACT = {
    0.5: lambda x: 2 / math.pi * np.arcsin(np.sqrt(x)),
    1.0: lambda x: x,
    2.0: lambda x: 3 * x**2 - 2 * x**3,
    3.0: lambda x: 10 * x**3 - 15 * x**4 + 6 * x**5,
}


@pytest.mark.parametrize("alpha", list(EXACT))
def test_the_beta_distribution_against_its_closed_forms(alpha: float) -> None:
    function, x = symmetric_beta_quantiles(alpha)
    assert np.all(np.diff(function) >= 0)
    assert function[-1] == x[-1] == 0.5
    assert np.abs(function - EXACT[alpha](x)).max() < 1e-6
    assert np.diff(x).max() < 1e-3


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.2, 1.0, 4.0, 100.0])
def test_shares_have_the_moments_of_the_beta_distribution(alpha: float) -> None:
    ids = np.arange(40_000)
    blank = torch.zeros((len(ids), 1, 1, 1))
    zeros = torch.zeros(len(ids), dtype=torch.int64)
    shares = Augmenter(Augment(mixup=alpha), (1, 1, 1), 0, ids).mix(blank, blank, zeros, zeros + 1, ids, 1, 2)[1][:, 0]
    variance = 1 / (4 * (2 * alpha + 1))
    assert float(shares.double().mean()) == pytest.approx(0.5, abs=5 * math.sqrt(variance / len(ids)))
    assert float(shares.double().var()) == pytest.approx(variance, rel=0.04)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"flip": True}, (64,), r"augment needs images of shape \(H, W, C\); these samples have shape \(64,\)"),
        ({"mixup": 0.2}, (64,), "set augment to null"),
        ({"crop": 6}, (8, 6, 1), "augment.crop must be smaller than the image, which is 8 x 6; got 6: set it to 5"),
        ({"cutout": 9}, (8, 28, 1), "augment.cutout must be smaller than the image, which is 8 x 28; got 9"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(BadParams, match=message):
        make(shape, **settings)


def test_mixup_without_anything_to_mix_with_is_refused() -> None:
    with pytest.raises(BadParams, match=r"augment\.mixup needs two train samples or more; there is 1"):
        Augmenter(Augment(mixup=0.2), (6, 6, 1), 0, np.array([4]))
    blank, labels = images(1), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"augment\.mixup is off"):
        make(flip=True).mix(blank, blank, labels, labels, IDS[:1], 1, 2)


def test_no_operation_lacks_a_deterministic_form() -> None:
    former = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        assert make(flip=True, crop=2, cutout=3).apply(images(9), IDS[:9], 1).shape == (9, 6, 7, 2)
    finally:
        torch.set_deterministic_debug_mode(former)


def test_the_example() -> None:
    outcome = doctest.testmod(augment_module)
    assert outcome.failed == 0
    assert outcome.attempted >= 5
