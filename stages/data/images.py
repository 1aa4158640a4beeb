"""Decodes PNG and JPEG files into uint8 arrays; the one place that says what an image file may be."""

import io
import warnings

import numpy as np
import numpy.typing as npt
from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
_DEEP_MODES = ("I", "F")
"""Prefixes of Pillow's modes with more than 8 bits: converting them to 8 would clip silently."""


class UnreadableImageError(ValueError):
    """The content is no PNG or JPEG, is damaged, or has more than 8 bits a channel."""


def decode(content: bytes, resize: tuple[int, int] | None = None, *, grayscale: bool = False) -> npt.NDArray[np.uint8]:
    """The pixels of a PNG or JPEG file, uint8 (height, width, channels): 3 channels (RGB), or 1 with `grayscale`.

    `resize` is (height, width), bilinear. Transparency is left out; the orientation that a camera notes is not applied.
    Raises `UnreadableImageError`.
    """
    try:
        with warnings.catch_warnings():
            # Pillow only warns of an image that may be a decompression bomb; here it is a bad file.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                return _pixels(image, resize, grayscale)
    except UnreadableImageError:
        raise
    except Image.UnidentifiedImageError:
        raise UnreadableImageError("no PNG or JPEG image") from None
    except Exception as error:  # On damaged files Pillow's decoders raise whatever their parsing ran into.
        raise UnreadableImageError(f"damaged image ({error})") from None


def _pixels(image: Image.Image, resize: tuple[int, int] | None, grayscale: bool) -> npt.NDArray[np.uint8]:
    if image.mode.startswith(_DEEP_MODES):
        raise UnreadableImageError(f"more than 8 bits a channel (mode {image.mode})")
    plain = image.convert("L" if grayscale else "RGB")
    if resize is not None and (plain.height, plain.width) != resize:
        plain = plain.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    pixels = np.array(plain, dtype=np.uint8)
    return pixels[:, :, None] if grayscale else pixels
