"""The stage as a whole: measures, decides, keeps the decision, writes a constant output."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages import benchmark_data
from stages.config.benchmark_data import BenchmarkData
from stages.data.loader_benchmark import DEFAULT_LOADER, _loader, _Task, measure
from stages.data.loader_benchmark import _run as _run_loader
from stages.data.loaders import STAGE, LoaderSettings, decision_key, loader_settings
from stages.data.prepared import Prepared
from stages.runtime import decisions, measured
from stages.runtime.files import read_json
from stages.runtime.stage import Result
from tests.unit.data.build import prepare, random_images, write_folder, write_npz

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHIPWAY_STATE", raising=False)
    return tmp_path


@pytest.fixture
def prepared(workspace: Path) -> Prepared:
    images, labels = random_images(300, size=8)
    return prepare(workspace / "out", source="npz", path=write_npz(workspace / "a.npz", images=images, labels=labels))[
        0
    ]


def _run(prepared: Prepared, batch_size: int = 16, **settings: Any) -> Result:
    params = benchmark_data.Params(seed=0, threads=1, benchmark_data=BenchmarkData(**settings), batch_size=batch_size)
    outputs = benchmark_data.Outputs(Path("artifacts/benchmark_data/done.json"))
    return benchmark_data.run(params, benchmark_data.Inputs(prepared.folder), outputs)


def test_an_array_is_loaded_in_process_and_the_decision_is_recalled(prepared: Prepared) -> None:
    result = _run(prepared)
    assert loader_settings(prepared) == LoaderSettings(0, True)
    values = measured.read(benchmark_data.MEASURED, of=prepared.info.hash)
    assert values is not None
    assert set(values["loaders"]) == {
        "batched indexing in process",
        "per-sample indexing in process",
        "batched indexing in 2 workers",
        "per-sample indexing in 2 workers",
        DEFAULT_LOADER,
    }
    gain = values["loaders"][DEFAULT_LOADER]["epoch_s"] / values["loaders"]["batched indexing in process"]["epoch_s"]
    assert values["gain_over_default_loader"] == pytest.approx(gain)
    assert gain > 1.0
    assert result.summary.startswith(f"batched indexing in process (the fastest): {gain:.1f}x the default loader, ")
    assert all(speed["samples_per_s"] > 0 and speed["first_batch_ms"] > 0 for speed in values["loaders"].values())
    assert measured.read(benchmark_data.MEASURED, of="other data") is None


def test_the_output_is_constant(prepared: Prepared) -> None:
    _run(prepared, workers=[0])
    first = Path("artifacts/benchmark_data/done.json").read_bytes()
    _run(prepared, workers=[2, 0], batch_size=8)
    assert Path("artifacts/benchmark_data/done.json").read_bytes() == first
    assert read_json(Path("artifacts/benchmark_data/done.json")) == {"done": True}


def test_a_former_decision_stays_unless_another_is_clearly_faster(prepared: Prepared) -> None:
    _run(prepared)
    again = _run(prepared)
    assert "(kept: nothing is more than 10% faster)" in again.summary
    slow = {"workers": 2, "batched": False}
    decisions.keep(STAGE, decision_key(prepared), slow, {})
    assert "(the fastest)" in _run(prepared).summary
    assert loader_settings(prepared) == LoaderSettings(0, True)


def test_fixed_workers_are_used_and_nothing_else_is_tried(prepared: Prepared) -> None:
    result = _run(prepared, fixed_workers=1)
    assert loader_settings(prepared) == LoaderSettings(1, True)
    assert "batched indexing in 1 worker (fixed by benchmark_data.fixed_workers)" in result.summary
    values = read_json(benchmark_data.MEASURED)
    assert set(values["loaders"]) == {"batched indexing in 1 worker", DEFAULT_LOADER}


def test_every_candidate_is_tried_once_within_a_tiny_budget(prepared: Prepared) -> None:
    _run(prepared, workers=[0, 1, 2, 3], time_budget_s=0.001)
    values = read_json(benchmark_data.MEASURED)
    assert len(values["loaders"]) == 9
    assert all(speed["batches"] <= 1 for name, speed in values["loaders"].items() if "workers" in name)


def test_a_clear_loser_is_stopped_early_and_the_reference_is_measured_in_full(prepared: Prepared) -> None:
    order = np.tile(prepared.indices("train"), 4)
    task = _Task(order, 4, len(prepared.indices("train")))
    in_full = _run_loader(_loader(prepared, task, LoaderSettings()), task, limit_s=60.0)
    assert in_full.batches == -(-len(order) // 4) - 1
    loser = _run_loader(
        _loader(prepared, task, LoaderSettings()), task, limit_s=60.0, best_epoch_s=1e-12
    )  # No loader is so fast.
    assert loser.batches == 1
    choices = {"only": LoaderSettings(0, True)}
    speeds = measure(prepared, choices, batch_size=4, limit=200, time_budget_s=60.0, seed=0)
    assert speeds[DEFAULT_LOADER].batches == 200


def test_image_files_are_measured_too_and_a_batch_larger_than_the_data_works(workspace: Path) -> None:
    images, labels = random_images(60)
    folder = write_folder(workspace / "raw", images, labels)
    prepared = prepare(workspace / "out", source="image_folder", path=folder)[0]
    result = _run(prepared, batch_size=500, batches=2, time_budget_s=1.0)
    assert "bounds the loader" in result.summary
    assert loader_settings(prepared).workers in (0, 2)


def test_as_a_process_on_the_digits(workspace: Path) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, workspace / name)
    shutil.copytree(ROOT / "stages", workspace / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    for stage in ("prepare_data", "benchmark_data"):
        command = [sys.executable, "-m", f"stages.{stage}"]
        done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 1
    last = read_json(workspace / ".shipway/last/benchmark_data.json")
    assert last["evidence"]["chosen"] == "batched indexing in process"
    prepared = Prepared.open(workspace / "artifacts/prepare_data/data")
    assert loader_settings(prepared) == LoaderSettings(0, True)
    assert np.array_equal(prepared.indices("train"), np.unique(prepared.indices("train")))
