"""Gradient accumulation: how an epoch falls into windows (one optimizer step each), and a window into micro-batches.

The windows depend on the data and the effective batch alone, so they stay the same when a micro-batch is halved.
"""


def window_sizes(samples: int, batch_size: int) -> list[int]:
    """Samples per optimizer step of an epoch, in order: `window_sizes(10, 4)` -> [4, 4, 2].

    The last window holds what is left; where that is one sample, it joins the window before it, since BatchNorm has no
    spread over one sample: `window_sizes(9, 4)` -> [4, 5].
    """
    return _split(samples, batch_size)


def micro_sizes(window: int, micro_batch: int) -> list[int]:
    """Samples per forward pass of one window, in order; a last one of one sample joins the one before it."""
    return _split(window, micro_batch)


def _split(total: int, size: int) -> list[int]:
    """`total` in pieces of `size`; a last piece of one joins the one before it where `size` is above one."""
    if total < 0 or size < 1:
        raise ValueError(f"needs total >= 0 and size >= 1; got {total} and {size}")
    pieces = [size] * (total // size)
    left = total % size
    if left == 1 and pieces:
        pieces[-1] += 1
    elif left:
        pieces.append(left)
    return pieces
