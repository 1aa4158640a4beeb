"""Writes .npy files: whole ones atomically, long ones row by row."""

import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stages.runtime.files import write_bytes


def save_npy(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes an array atomically and durably."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getvalue())


class NpyWriter:
    """Appends rows to an .npy file (format 1.0) whose number of rows is known only at the end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.shape: tuple[int, ...] | None = None
        self.dtype: np.dtype[Any] | None = None
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Writes contiguous rows (n, *shape); the first ones fix shape and type."""
        if self.shape is None:
            self.shape, self.dtype = rows.shape[1:], rows.dtype
            self._header()
        self._file.write(rows.data)
        self._count += len(rows)

    def _header(self) -> None:
        # numpy pads the header for a first axis of any length, so that it can be written again in place.
        descr = np.lib.format.dtype_to_descr(np.dtype(self.dtype))
        fields = {"shape": (self._count, *(self.shape or ())), "fortran_order": False, "descr": descr}
        np.lib.format.write_array_header_1_0(self._file, fields)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None and self.shape is not None:
                self._file.seek(0)
                self._header()
                self._file.flush()
                os.fsync(self._file.fileno())
