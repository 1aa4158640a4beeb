"""Saves in the background: the training waits for a copy of its tensors, not for the disk."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
from torch import Tensor

from stages.checkpoints.store import Store

_HEADROOM = 4
"""A copy, its serialised form and what writing takes must fit into free memory so many times, else the save waits."""


class Saver:
    """One save at a time, in a thread. Call `poll` now and then: what went wrong in the thread is raised there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        step: int,
        payload: Mapping[str, Any],
        meta: Mapping[str, Any],
        *,
        best_step: int | None,
        anchor_step: int | None,
        before: Callable[[], None],
        wait: bool,
        due: bool = True,
    ) -> None:
        """As `Store.save`, after `before` (which makes durable what the checkpoint refers to).

        With `wait`, or where memory is short, it returns when the checkpoint is on the disk; else when the tensors are
        copied. Raises what an earlier save in the background failed with.
        """
        self.wait()

        def write(content: Mapping[str, Any]) -> None:
            before()
            self.store.save(step, content, meta, best_step=best_step, anchor_step=anchor_step, due=due)

        if wait or tensor_bytes(payload) * _HEADROOM > psutil.virtual_memory().available:
            write(payload)
            return
        copied = copy_of(payload)
        self._thread = threading.Thread(target=self._guarded, args=(lambda: write(copied),), name="checkpoint")
        self._thread.start()

    def poll(self) -> None:
        """Raises what a save in the background failed with, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Returns when nothing is being written. Raises as `poll`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.poll()

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._error = error


def copy_of(value: Any) -> Any:
    """The same nested values, every tensor copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_of(one) for key, one in value.items()}
    return type(value)(copy_of(one) for one in value) if isinstance(value, list | tuple) else value


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in nested values."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(tensor_bytes, inner))
