"""Static quantization of real graphs, and the models that are refused before it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from stages.data.prepared import Prepared
from stages.deployment import calibration, evaluation, graphs, quantization, sessions
from stages.deployment.number_types import number_types
from stages.runtime.exits import BadData
from tests.conftest import ROOT
from tests.unit.deployment.build import conv_net, dense_net, embed

RAW, ALL, PRODUCTS = quantization.CANDIDATES


def quantized(path: Path, prepared: Prepared, candidate: quantization.Candidate, vnni: bool = False) -> onnx.ModelProto:
    ready = quantization.rewrite(quantization.preprocess(path)[0], candidate.raw_input)
    samples = calibration.choose(prepared, 128, seed=0)
    ranges = calibration.activation_ranges(ready.model, prepared, samples, "minmax", 1, path.parent)
    return quantization.quantize(ready, candidate, ranges, number_types({"avx512_vnni"} if vnni else {"avx2"}))


def weights(model: onnx.ModelProto, data_type: int) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == data_type}


@pytest.fixture
def net(images: Path, tmp_path: Path) -> Path:
    return embed(conv_net(Prepared.open(images), (8, 16)), tmp_path / "net.onnx")


def test_activations_are_unsigned_and_weights_signed_per_channel(net: Path, images: Path) -> None:
    model = quantized(net, Prepared.open(images), ALL)
    kernels = {name: w for name, w in weights(model, TensorProto.INT8).items() if w.ndim == 4}
    assert len(kernels) == 2
    scales = {n: w for n, w in weights(model, TensorProto.FLOAT).items() if n.endswith("_scale")}
    assert scales["w1_scale"].shape == (16,)
    quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    zero_points = weights(model, TensorProto.UINT8)
    assert quantizers
    assert all(node.input[2] in zero_points for node in quantizers)


def test_without_vnni_weights_use_seven_bits(net: Path, images: Path) -> None:
    prepared = Prepared.open(images)
    reduced, whole = (quantized(net, prepared, ALL, vnni) for vnni in (False, True))
    assert max(np.abs(w).max() for w in weights(reduced, TensorProto.INT8).values()) <= 64
    assert max(np.abs(w).max() for w in weights(whole, TensorProto.INT8).values()) > 100


def test_a_candidate_limited_to_products_leaves_the_rest_in_float(net: Path, images: Path) -> None:
    prepared = Prepared.open(images)
    counts = [
        sum(node.op_type == "QuantizeLinear" for node in quantized(net, prepared, candidate).graph.node)
        for candidate in (ALL, PRODUCTS)
    ]
    assert counts[1] < counts[0]


def test_the_float_model_s_identity_does_not_stick_to_the_int8_model(net: Path, images: Path) -> None:
    assert graphs.identity_text(net)
    model = quantized(net, Prepared.open(images), ALL)
    assert not model.metadata_props
    assert str(net.parent).encode() not in model.SerializeToString()


def test_int8_predicts_what_float_predicts(net: Path, images: Path, tmp_path: Path) -> None:
    prepared = Prepared.open(images)
    before = evaluation.score(net, prepared, "test", 1)
    assert before.accuracy > 0.9
    for candidate in (RAW, ALL, PRODUCTS):
        path = tmp_path / "int8.onnx"
        graphs.save(quantized(net, prepared, candidate), path)
        assert evaluation.score(path, prepared, "test", 1).accuracy >= before.accuracy - 0.02


def test_two_processes_with_other_hash_seeds_and_folders_give_the_same_bytes(net: Path, images: Path) -> None:
    script = """
import sys
from pathlib import Path
from stages.data.prepared import Prepared
from stages.deployment import calibration, graphs, quantization
from stages.deployment.number_types import number_types
source, data, target = map(Path, sys.argv[1:])
prepared = Prepared.open(data)
ready = quantization.rewrite(quantization.preprocess(source)[0], True)
samples = calibration.choose(prepared, 64, seed=0)
ranges = calibration.activation_ranges(ready.model, prepared, samples, "percentile", 1, target.parent)
graphs.save(quantization.quantize(ready, quantization.CANDIDATES[0], ranges, number_types({"avx2"})), target)
"""
    running = {}
    for seed in ("1", "2"):
        target = net.parent / f"folder {seed}" / "int8.onnx"
        target.parent.mkdir()
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""}
        command = [sys.executable, "-c", script, str(net), str(images), str(target)]
        running[target] = subprocess.Popen(command, env=env, cwd=target.parent)
    assert [process.wait() for process in running.values()] == [0, 0]
    first, second = (target.read_bytes() for target in running)
    assert first == second


def test_a_quantized_model_is_refused(net: Path, images: Path) -> None:
    with pytest.raises(BadData, match="quantized already"):
        quantization.require_float(quantized(net, Prepared.open(images), ALL), net)


def test_half_precision_is_refused(rows: Callable[..., Prepared]) -> None:
    model = dense_net(rows())
    half = numpy_helper.from_array(numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16), "w0")
    model.graph.initializer[0].CopyFrom(half)
    with pytest.raises(BadData, match="float32 weights, it holds FLOAT16"):
        quantization.require_float(model, Path("m.onnx"))


def test_nan_weights_are_refused_and_named(rows: Callable[..., Prepared]) -> None:
    model = dense_net(rows())
    broken = numpy_helper.to_array(model.graph.initializer[0]).copy()
    broken[0, 0] = np.nan
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(broken, "w0"))
    with pytest.raises(BadData, match="NaN or infinity in 1 weights: w0"):
        quantization.require_float(model, Path("m.onnx"))


def test_a_graph_with_nothing_to_quantize_says_so(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(dense_net(rows()).SerializeToString())
    with pytest.raises(quantization.QuantizationFailed, match="no operator"):
        quantized(path, Prepared.open(tmp_path / "rows"), quantization.Candidate("none", ("Conv",)))


def test_where_preprocessing_fails_plain_shape_inference_goes_on_and_says_so(
    rows: Callable[..., Prepared], tmp_path: Path
) -> None:
    """An operator of another domain: ONNX Runtime cannot load it, so its optimisation fails."""
    model = dense_net(rows())
    model.opset_import.add(domain="own", version=1)
    model.graph.node.append(onnx.helper.make_node("Own", ["logits"], ["other"], domain="own"))
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    ready, note = quantization.preprocess(path)
    assert note is not None
    assert note.startswith("quant_pre_process failed")
    assert "\n" not in note
    assert "features" in {value.name for value in ready.graph.value_info}


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(BadData, match="no readable ONNX model"):
        graphs.load(path)
    with pytest.raises(BadData, match="cannot be loaded by ONNX Runtime"):
        sessions.session(path, 1)
    with pytest.raises(BadData, match="is missing"):
        sessions.session(tmp_path / "none.onnx", 1)
