"""Random changes to whole batches of training images: flip, crop, cutout, mixup.

What happens to a sample depends on (seed, epoch, sample) alone: its random numbers are a hash of these, not the next
ones of a generator. So it is the same in every batch, order, worker and device, and after every resume.

>>> import numpy as np, torch
>>> from stages.config.augment import Augment
>>> augmenter = Augmenter(Augment(flip=True, crop=2, cutout=4), shape=(28, 28, 1), seed=0, train_ids=np.arange(1000))
>>> raw, ids = torch.randint(256, (8, 28, 28, 1), dtype=torch.uint8), np.arange(100, 108)
>>> whole = augmenter.apply(raw, ids, epoch=1)
>>> torch.equal(whole[5:], augmenter.apply(raw[5:], ids[5:], epoch=1))
True
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.config.augment import Augment
from stages.data.prepared import Indices
from stages.runtime.exits import BadParams
from stages.runtime.seeds import derive

_Hashes = npt.NDArray[np.uint64]
_Reals = npt.NDArray[np.float64]


class Augmenter:
    """The random changes that `settings` ask for, to images of `shape` (H, W, C)."""

    def __init__(self, settings: Augment, shape: Sequence[int], seed: int, train_ids: Indices) -> None:
        """`train_ids`: the samples (int64) that mixup takes partners from. Raises `BadParams` where it cannot work."""
        _check(settings, shape, len(train_ids))
        self._settings = settings
        self._height, self._width = int(shape[0]), int(shape[1])
        self._seed = seed
        self._train_ids = np.asarray(train_ids, dtype=np.int64)
        self._quantiles = None if settings.mixup is None else symmetric_beta_quantiles(settings.mixup)

    @property
    def mixes(self) -> bool:
        """Whether mixup is on: then each sample needs its partner, and labels become soft."""
        return self._quantiles is not None

    def apply(self, raw: Tensor, ids: Indices, epoch: int) -> Tensor:
        """Flip, crop and cutout, each where it is on, in this order; the input stays as it is.

        `raw`: (n, H, W, C), any dtype and device, which the result keeps. `ids`: int64 (n,), the samples' indices.
        """
        settings, changed = self._settings, raw
        if settings.flip:
            changed = flipped(changed, self._places("flip", ids, epoch, 2).to(raw.device) == 1)
        if settings.crop:
            down, right = (
                self._places(f"crop {axis}", ids, epoch, 2 * settings.crop + 1).to(raw.device) for axis in "yx"
            )
            changed = cropped(changed, down, right, settings.crop)
        if settings.cutout:
            row = self._places("cutout y", ids, epoch, self._height).to(raw.device)
            column = self._places("cutout x", ids, epoch, self._width).to(raw.device)
            changed = cut_out(changed, row, column, settings.cutout)
        return changed

    def partners(self, ids: Indices, epoch: int) -> Indices:
        """The train sample that each of `ids` is mixed with, int64 (n,); now and then a sample's partner is itself."""
        chosen: Indices = self._train_ids[self._hash("mixup partner", ids, epoch) % np.uint64(len(self._train_ids))]
        return chosen

    def mix(
        self,
        raw: Tensor,
        partner_raw: Tensor,
        labels: Tensor,
        partner_labels: Tensor,
        ids: Indices,
        epoch: int,
        classes: int,
    ) -> tuple[Tensor, Tensor]:
        """Mixup (Zhang et al. 2018): share * own + (1 - share) * partner, for images and labels alike.

        The share of each sample of `ids` is drawn from Beta(alpha, alpha). Gives images float32 (n, H, W, C) in the raw
        domain (0 to 255 for uint8) and labels float32 (n, classes) that sum to exactly 1.
        """
        own = torch.from_numpy(self._shares(ids, epoch)).to(raw.device)
        others = 1.0 - own
        mixed = raw.float() * own.view(-1, 1, 1, 1) + partner_raw.float() * others.view(-1, 1, 1, 1)
        return mixed, _one_hot(labels, classes) * own[:, None] + _one_hot(partner_labels, classes) * others[:, None]

    def _shares(self, ids: Indices, epoch: int) -> npt.NDArray[np.float32]:
        """Beta(alpha, alpha) by inverse transform of the hash; the distribution is symmetric, so half a table does."""
        if self._quantiles is None:
            raise ValueError("augment.mixup is off")
        uniform = (self._hash("mixup share", ids, epoch) >> np.uint64(11)) * 2.0**-53
        share = np.interp(np.minimum(uniform, 1.0 - uniform), *self._quantiles)
        both: _Reals = np.where(uniform < 0.5, share, 1.0 - share)
        return both.astype(np.float32)

    def _places(self, purpose: str, ids: Indices, epoch: int, count: int) -> Tensor:
        """One of 0 .. count - 1 for each sample, int64 (n,)."""
        return torch.from_numpy((self._hash(purpose, ids, epoch) % np.uint64(count)).astype(np.int64))

    def _hash(self, purpose: str, ids: Indices, epoch: int) -> _Hashes:
        return splitmix64(derive(self._seed, "augment", purpose, epoch), ids)


def splitmix64(key: int, counters: Indices) -> _Hashes:
    """The outputs number `counters` (n,) of SplitMix64 seeded with `key` (Steele, Lea & Flood 2014), uint64 (n,)."""
    mixed = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def flipped(raw: Tensor, chosen: Tensor) -> Tensor:
    """Images (n, H, W, C), those with `chosen` (bool (n,)) mirrored left to right."""
    return torch.where(chosen.view(-1, 1, 1, 1), raw.flip(2), raw)


def cropped(raw: Tensor, top: Tensor, left: Tensor, pad: int) -> Tensor:
    """Images (n, H, W, C) padded by `pad` zeros on each side, then cut to (H, W) at row `top`, column `left` (n,)."""
    count, height, width, channels = raw.shape
    padded = raw.new_zeros((count, height + 2 * pad, width + 2 * pad, channels))
    padded[:, pad : pad + height, pad : pad + width] = raw
    every = padded.unfold(1, height, 1).unfold(2, width, 1)  # A view of all crops: (n, top, left, C, H, W).
    return every[torch.arange(count, device=raw.device), top, left].permute(0, 2, 3, 1).contiguous()


def cut_out(raw: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Images (n, H, W, C) with a square of zeros (DeVries & Taylor 2017) around (row, column), clipped at the border.

    It spans rows row - side // 2 to row - side // 2 + side - 1, and the columns likewise.
    """
    images = torch.arange(len(raw), device=raw.device)[:, None, None]
    rows, columns = _spanned(row, side, raw.shape[1])[:, :, None], _spanned(column, side, raw.shape[2])[:, None, :]
    return raw.index_put((images, rows, columns), raw.new_zeros(()))


def symmetric_beta_quantiles(alpha: float, points: int = 1 << 15) -> tuple[_Reals, _Reals]:
    """Beta(alpha, alpha)'s distribution function and where it takes these values, lower half: F(x), x, both (points,).

    Integrated over z = log(x / (1 - x)) by trapezoids: there the density, proportional to (x (1 - x))**alpha, is smooth
    and one-humped for every alpha, while over x it has poles for alpha below 1. Its tails fall as exp(-alpha |z|).
    """
    z = np.linspace(-(36.0 / alpha + 12.0 / alpha**0.5), 0.0, points)
    x = np.exp(z) / (1.0 + np.exp(z))
    density = np.exp(alpha * (z - 2.0 * np.log1p(np.exp(z)) + 2.0 * np.log(2.0)))
    area = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return 0.5 * area / area[-1], x


def _spanned(centre: Tensor, side: int, length: int) -> Tensor:
    """The `side` places around each centre, int64 (n, side); those beyond the border fall onto it."""
    places = (centre - side // 2)[:, None] + torch.arange(side, device=centre.device)
    return places.clamp(0, length - 1)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return labels[:, None] == torch.arange(classes, device=labels.device)  # Without F.one_hot's look at the values.


def _check(settings: Augment, shape: Sequence[int], train_samples: int) -> None:
    if len(shape) != 3:
        raise BadParams(
            f"augment needs images of shape (H, W, C); these samples have shape {tuple(shape)}: set augment to null"
        )
    smaller = min(shape[0], shape[1])
    for name in ("crop", "cutout"):
        size = getattr(settings, name)
        if size >= smaller:
            raise BadParams(
                f"augment.{name} must be smaller than the image, which is {shape[0]} x {shape[1]}; got {size}: set it "
                f"to {smaller - 1} or less"
            )
    if settings.mixup is not None and train_samples < 2:
        raise BadParams(f"augment.mixup needs two train samples or more; there is {train_samples}: set it to null")
