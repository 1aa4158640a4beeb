"""Several processes (ranks) on one training: each takes a part of every window, and all take the same step.

The process group is the launcher's (`torchrun`, or `torch.distributed.init_process_group`); its timeout is the deadline
after which a rank that waits for another one gives up. Without one there is a single rank, and nothing is exchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.runtime.exits import Stopped


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> "Ranks":
        """Of the process group, where there is one."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def part(self, samples: int) -> slice:
        """Samples of a window of so many that are this rank's: contiguous parts that differ by one at most."""
        return slice(samples * self.rank // self.size, samples * (self.rank + 1) // self.size)

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds up every rank's gradients, in place; where a rank has none, it gives zeros."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.sum([parameter.grad for parameter in parameters if parameter.grad is not None])

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Adds up every rank's tensors, in place, in one exchange for each type."""
        for alike in self._by_type(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            self._exchange(partial(dist.all_reduce, flat))
            self._spread(flat, alike)

    def from_first(self, tensors: Sequence[Tensor]) -> None:
        """Every rank takes rank 0's tensors, in place: BatchNorm's running statistics are each rank's own."""
        for alike in self._by_type(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            self._exchange(partial(dist.broadcast, flat, src=0))
            self._spread(flat, alike)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag as soon as one rank has it: so all ranks stop, or take less at a time, at the same step."""
        if self.size == 1:
            return flags
        given = torch.tensor(flags, dtype=torch.int32)
        self._exchange(partial(dist.all_reduce, given, op=dist.ReduceOp.MAX))
        return tuple(bool(flag) for flag in given.tolist())

    def least(self, value: int) -> int:
        """The smallest of every rank's value."""
        if self.size == 1:
            return value
        given = torch.tensor(value, dtype=torch.int64)
        self._exchange(partial(dist.all_reduce, given, op=dist.ReduceOp.MIN))
        return int(given)

    def alike(self, digest: str) -> bool:
        """Whether every rank has this hexadecimal digest."""
        value = int(digest[:15], 16)
        return self.least(value) == -self.least(-value)

    def _by_type(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        if self.size == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            yield [tensor for tensor in tensors if tensor.dtype == dtype]

    @staticmethod
    def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
        with torch.no_grad():
            pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
            for tensor, piece in zip(tensors, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))

    def _exchange(self, operation: Callable[[], object]) -> None:
        with _deadline():
            operation()


@contextmanager
def _deadline() -> Iterator[None]:
    """A rank that died or hangs ends the others, inside the group's timeout."""
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]
        raise Stopped(
            f"another process of this training is gone or does not answer ({said}); start all of them again to go on"
        ) from error
