"""State in a temporary folder, one thread, and signal handlers put back."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.data.prepared import Prepared
from stages.runtime import seeds, stopping
from tests.unit.training import toy


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path / "state"))
    seeds.apply(0, 1)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return toy.prepare(tmp_path / "data")


@pytest.fixture
def stoppable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Real signals stop this process's training; afterwards everything is as before."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(stopping, "_state", stopping._State())
    stopping.install()
    yield
    for number, handler in former.items():
        signal.signal(number, handler)
