"""Decodes PNG and JPEG files into uint8 arrays; the one place that says what an image file may be."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

SUFFIXES = (".png", ".jpg", ".jpeg")
_DEEP_MODES = ("I", "F")
"""Prefixes of Pillow's modes with more than 8 bits: converting them to 8 would clip silently."""
_DEPTH_IN_PNG = slice(24, 25)
"""The bit depth of a PNG's IHDR. Pillow cuts 16-bit RGB to 8 as it opens the file, so the mode does not tell."""
_DEEP_PNG = bytes([16])


class UnreadableImageError(ValueError):
    """The content is no PNG or JPEG, is damaged, or has more than 8 bits a channel."""


@contextmanager
def bombs_are_errors() -> Iterator[None]:
    """Inside, an image of implausibly many pixels (a decompression bomb) is unreadable; Pillow itself only warns.

    Around all threads that decode, since warning filters belong to the whole process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(content: bytes, resize: tuple[int, int] | None = None, *, grayscale: bool = False) -> npt.NDArray[np.uint8]:
    """The pixels of a PNG or JPEG file, uint8 (height, width, channels): 3 channels (RGB), or 1 with `grayscale`.

    `resize` is (height, width), bilinear. Transparency is left out; the orientation that a camera notes is not applied.
    Raises `UnreadableImageError`.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if image.format == "PNG" and content[_DEPTH_IN_PNG] == _DEEP_PNG:
                raise UnreadableImageError("more than 8 bits a channel (PNG of 16 bits)")
            return pixels(image, resize, grayscale=grayscale)
    except UnreadableImageError:
        raise
    except UnidentifiedImageError:
        raise UnreadableImageError("no PNG or JPEG image") from None
    except Exception as error:  # On damaged files Pillow's decoders raise whatever their parsing ran into.
        raise UnreadableImageError(f"damaged image ({error})") from None


def pixels(
    image: Image.Image, resize: tuple[int, int] | None = None, *, grayscale: bool = False
) -> npt.NDArray[np.uint8]:
    """The pixels of a PIL image as `decode` gives them. Raises `UnreadableImageError` for more than 8 bits."""
    if image.mode.startswith(_DEEP_MODES):
        raise UnreadableImageError(f"more than 8 bits a channel (mode {image.mode})")
    plain = image.convert("L" if grayscale else "RGB")
    if resize is not None and (plain.height, plain.width) != resize:
        plain = plain.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    values = np.array(plain, dtype=np.uint8)
    return values[:, :, None] if grayscale else values
