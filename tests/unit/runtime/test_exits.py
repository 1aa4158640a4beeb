"""What an exception of the system stands for."""

import errno
import os

import pytest

from stages.runtime.exits import BadParams, DiskFault, as_stage_error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_faults_of_the_disk_are_named(number: int) -> None:
    assert isinstance(as_stage_error(OSError(number, os.strerror(number))), DiskFault)


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_machine_out_of_threads_is_no_fault_of_the_disk(kind: type[Exception]) -> None:
    assert as_stage_error(kind(errno.EAGAIN, os.strerror(errno.EAGAIN))) is None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")]
)
def test_memory_that_ran_out_is_said(error: Exception) -> None:
    found = as_stage_error(error)
    assert isinstance(found, BadParams)
    assert found.sentence.startswith("memory ran out (")
