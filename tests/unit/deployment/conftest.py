"""Fixtures of the deployment's tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.data.prepared import Prepared
from tests.unit.deployment.build import CLASSES, Floats, noisy_patterns, write_prepared


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Decisions and measurements go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHIPWAY_STATE", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared images."""
    samples, labels = noisy_patterns(480)
    return write_prepared(tmp_path_factory.mktemp("images") / "data", samples, labels, ["a", "b", "c", "d"])


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Prepared]:
    """Prepared float rows; a function, since tests spoil some of them."""

    def make(spoil: Callable[[Floats], None] | None = None) -> Prepared:
        random = np.random.default_rng(0)
        labels = random.integers(0, CLASSES, 480).astype(np.int64)
        samples = (random.normal(0, 1, (CLASSES, 12))[labels] * 2 + random.normal(0, 1, (480, 12))).astype(np.float32)
        if spoil is not None:
            spoil(samples)
        return Prepared.open(write_prepared(tmp_path / "rows", samples, labels, ["a", "b", "c", "d"]))

    return make
