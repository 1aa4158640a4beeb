"""Stage `quantize`: INT8 where it is as good and faster, float byte for byte elsewhere, always with the reason."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from stages.config.quantize import Quantize
from stages.data.prepared import Prepared
from stages.deployment import selection
from stages.deployment.latency import Latency
from stages.quantize import Inputs, Outputs, Params, run
from stages.runtime import decisions, measured
from stages.runtime.exits import BadData
from stages.runtime.files import sha256_file, write_json
from stages.runtime.stage import Result
from tests.unit.deployment.build import conv_net, dense_net, embed

MEASURED = Path("artifacts/quantize/measured.json")


def quantize(data: Path, model: Any, folder: Path, **settings: Any) -> tuple[Result, dict[str, Any]]:
    """Runs the stage on a model; its result and decision.json."""
    source = folder / "export" / "model.onnx"
    if not source.exists():
        embed(model, source)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    write_json(out / "identity.json", {"stage": "quantize", "settings": settings})
    params = Params(seed=0, threads=1, quantize=Quantize(**{"repeats": 60, **settings}))
    result = run(params, Inputs(data, source.parent), Outputs(out))
    return result, json.loads((out / "decision.json").read_text())


def same_file(folder: Path) -> bool:
    return (folder / "out/model.onnx").read_bytes() == (folder / "export/model.onnx").read_bytes()


def test_plain_convolutions_are_accepted_in_int8(images: Path, tmp_path: Path) -> None:
    """Fixed, since the clock of another processor may decide otherwise; see the test after this one."""
    model = conv_net(Prepared.open(images), (64, 128, 128, 128))
    result, decision = quantize(images, model, tmp_path, fixed="int8")
    assert decision["chosen"] == "int8", decision
    assert decision["test"]["int8"] >= decision["test"]["float"] - 0.01
    assert decision["number_types"]["activations"] == "uint8"
    source, made = tmp_path / "export/model.onnx", tmp_path / "out/model.onnx"
    assert made.stat().st_size < 0.4 * source.stat().st_size
    taken = measured.read(MEASURED, of=sha256_file(made))
    assert taken is not None
    assert taken["speedup"] > 0
    assert "int8" in result.summary


def test_the_first_decision_agrees_with_what_was_measured(images: Path, tmp_path: Path) -> None:
    model = conv_net(Prepared.open(images), (16, 32))
    result, decision = quantize(images, model, tmp_path, max_drop=1.0)
    speedups = [float(found) for found in re.findall(r"int8_\w+ ([\d.]+)x", result.summary)]
    assert len(speedups) == len(decision["validation"]["candidates"])
    rounded_to_the_bound = max(speedups) == 1.1
    assert rounded_to_the_bound or (max(speedups) > 1.1) == (decision["chosen"] == "int8"), result.summary
    assert "former choice" not in result.summary
    again, other = quantize(images, model, tmp_path, max_drop=1.0)
    assert ("former choice was kept" in again.summary) == (other["candidate"] == decision["candidate"]), again.summary


def decided(timings: dict[str, Latency], model: Path, data: Path, folder: Path) -> selection.Decision:
    """A decision of real candidates, of which the first is timed as told."""
    prepared = Prepared.open(data)
    mine = selection.Task(model, prepared, Quantize(), 0, 1, folder)
    name, kept = selection.fastest(mine, timings)
    return selection.Decision(name, None, selection.reason(name, mine.settings), timings=timings, kept=kept)


def test_the_reason_is_the_same_on_every_run_and_never_untrue(images: Path, tmp_path: Path) -> None:
    """A kept choice is explained by when it was decided: this run's clock may say otherwise, in the summary."""
    model = embed(conv_net(Prepared.open(images), (4, 8)), tmp_path / "m.onnx")
    first = decided(timed(float=1.0, int8_all=0.8), model, images, tmp_path)
    later = decided(timed(float=1.0, int8_all=0.99), model, images, tmp_path)
    assert first.to_json() == later.to_json()
    assert (first.kept, later.kept) == (False, True)
    assert later.reason == "keeps the accuracy, and was at least 1.1 times as fast as float when decided"
    slow = decided(timed(float=1.0, int8_all=1.4), model, images, tmp_path)
    quick = decided(timed(float=1.0, int8_all=1 / 1.2), model, images, tmp_path)
    assert slow.to_json() == quick.to_json()
    assert slow.reason == "INT8 keeps the accuracy, but was not 1.1 times as fast as float when decided"


def test_a_tiny_net_stays_in_float_and_the_reason_is_recorded(images: Path, tmp_path: Path) -> None:
    _, decision = quantize(images, conv_net(Prepared.open(images), (4, 8)), tmp_path)
    assert decision["chosen"] == "float", decision
    assert "was not 1.1 times as fast as float when decided" in decision["reason"]
    assert same_file(tmp_path)
    assert measured.read(MEASURED, of=sha256_file(tmp_path / "export/model.onnx")) is not None


def test_no_measured_time_stands_in_the_artifact(images: Path, tmp_path: Path) -> None:
    model = conv_net(Prepared.open(images), (4, 8))
    result, _ = quantize(images, model, tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    quantize(images, model, tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == first
    decision = json.loads(first["decision.json"])
    keys = set(leaves(decision))
    assert "validation.float" in keys
    assert not [key for key in keys if re.search(r"_ms\b|latency|[^_]speedup|device|time|processor", key)], keys
    device = decisions.device_key()
    taken = json.loads(MEASURED.read_text())
    assert (taken["device"], result.run["device"]) == (device, device)
    assert device["processor"].encode() not in first["decision.json"]


def leaves(value: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of a JSON value."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        name = f"{prefix}.{key}" if prefix else str(key)
        yield from leaves(child, name) if isinstance(child, dict | list) else [name]


def test_too_low_an_accuracy_means_float_whatever_is_fixed(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    """One hidden unit, ignored by the classifier, is 1e5 times as large as the others: eight bits see nothing else."""
    prepared = rows()
    model = dense_net(prepared)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    first, last = (numpy_helper.to_array(weights[name]).copy() for name in ("w0", "wc"))
    first[:, 0] *= 1e5
    last[0] = 0
    weights["w0"].CopyFrom(numpy_helper.from_array(first, "w0"))
    weights["wc"].CopyFrom(numpy_helper.from_array(last, "wc"))
    _, decision = quantize(prepared.folder, model, tmp_path, fixed="int8")
    assert decision["validation"]["float"] > 0.9
    assert decision["chosen"] == "float"
    assert "accuracy on validation falls" in decision["reason"]
    assert same_file(tmp_path)


def test_a_failed_confirmation_on_test_means_float(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    """The test split's values are 1000 times smaller: nothing to a float net without biases, below INT8's steps."""

    def spoil(samples: np.ndarray) -> None:
        samples[3 * len(samples) // 4 :] *= 1e-3

    prepared = rows(spoil)
    _, decision = quantize(prepared.folder, dense_net(prepared), tmp_path, fixed="int8")
    assert decision["test"]["float"] > 0.9
    assert decision["chosen"] == "float"
    assert "was chosen on validation, but accuracy on test falls" in decision["reason"]
    assert same_file(tmp_path)


def test_the_bound_allows_exactly_what_it_says() -> None:
    assert selection.too_low("test", 0.94, 0.95, 0.01) is None
    assert selection.too_low("test", 0.97, 0.95, 0.0) is None
    assert "at most 0.01 is allowed" in (selection.too_low("test", 0.93, 0.95, 0.01) or "")


def test_fixed_int8_ignores_the_clock(images: Path, tmp_path: Path) -> None:
    _, decision = quantize(images, conv_net(Prepared.open(images), (4, 8)), tmp_path, fixed="int8", max_drop=0.05)
    assert decision["chosen"] == "int8"
    assert "quantize.fixed" in decision["reason"]
    assert not same_file(tmp_path)


@pytest.mark.parametrize(("settings", "why"), [({"enabled": False}, "enabled is false"), ({"fixed": "float"}, "fixed")])
def test_switched_off_hands_the_float_model_on(
    images: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    why: str,
) -> None:
    _, decision = quantize(images, conv_net(Prepared.open(images), (4, 8)), tmp_path, **settings)
    assert decision["chosen"] == "float"
    assert decision["status"] == "skipped"
    assert why in decision["reason"]
    assert same_file(tmp_path)


def test_nan_in_the_calibration_data_is_refused(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    def spoil(samples: np.ndarray) -> None:
        samples[3, 0] = np.inf

    prepared = rows(spoil)
    with pytest.raises(BadData, match="sample 3"):
        quantize(prepared.folder, dense_net(prepared), tmp_path, calibration_samples=1000)
    assert not (tmp_path / "out/model.onnx").exists()


def test_an_outlier_in_the_calibration_data_is_reported(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    def spoil(samples: np.ndarray) -> None:
        samples[3] *= 100

    prepared = rows(spoil)
    _, decision = quantize(prepared.folder, dense_net(prepared), tmp_path, calibration_samples=1000, fixed="int8")
    assert decision["calibration"]["outliers_left_out"] == [3]


def test_forced_as_without_vnni_the_result_stays_within_the_bound(images: Path, tmp_path: Path) -> None:
    model = conv_net(Prepared.open(images), (16, 32))
    _, decision = quantize(images, model, tmp_path, reduce_range=True, fixed="int8", max_drop=0.02)
    assert decision["number_types"]["reduce_range"] is True
    assert decision["chosen"] == "int8"
    assert decision["test"]["int8"] >= decision["test"]["float"] - 0.02


def timed(**medians_ms: float) -> dict[str, Latency]:
    return {name: Latency((np.full(10, median),)) for name, median in medians_ms.items()}


def task(images: Path, folder: Path, **settings: Any) -> selection.Task:
    prepared = Prepared.open(images)
    path = embed(conv_net(prepared, (4, 8)), folder / "m.onnx")
    return selection.Task(path, prepared, Quantize(**settings), 0, 1, folder)


def test_a_choice_is_kept_until_another_is_clearly_better(images: Path, tmp_path: Path) -> None:
    mine = task(images, tmp_path)
    assert selection.fastest(mine, timed(float=1.00, int8_all=0.80))[0] == "int8_all"
    assert selection.fastest(mine, timed(float=1.00, int8_all=0.98))[0] == "int8_all"
    assert selection.fastest(mine, timed(float=1.00, int8_all=1.10))[0] == "float"
    assert selection.fastest(mine, timed(float=1.00, int8_all=0.89))[0] == "float"
    assert selection.fastest(mine, timed(float=1.00, int8_all=0.70))[0] == "int8_all"


def test_other_settings_are_another_decision(images: Path, tmp_path: Path) -> None:
    assert selection.fastest(task(images, tmp_path), timed(float=1.0, int8_all=0.8))[0] == "int8_all"
    assert selection.fastest(task(images, tmp_path, max_drop=0.2), timed(float=1.0, int8_all=0.95))[0] == "float"


def test_the_least_speedup_is_kept_at_the_first_decision(images: Path, tmp_path: Path) -> None:
    assert selection.fastest(task(images, tmp_path, min_speedup=1.5), timed(float=1.0, int8_all=0.8))[0] == "float"
    assert selection.fastest(task(images, tmp_path, min_speedup=1.2), timed(float=1.0, int8_all=0.8))[0] == "int8_all"
