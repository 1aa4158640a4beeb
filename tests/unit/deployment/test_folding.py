"""Rewrites for INT8: what they keep exactly, where they do not apply."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from stages.data.prepared import Prepared
from stages.deployment import folding, graphs, quantization
from tests.unit.deployment.build import Graph, conv_net, dense_net, noisy_patterns, write_prepared
from tests.unit.deployment.test_quantization import RAW, quantized


def run(model: onnx.ModelProto, raw: np.ndarray) -> np.ndarray:
    loaded = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(loaded.run(None, {"input": raw})[0])


def prepared_graph(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return quantization.preprocess(path)[0]


def mean_net(keepdims: int, axes: list[int]) -> onnx.ModelProto:
    graph = Graph([], [])
    name = graph.add("Relu", ["input"], "relu")
    name = graph.add("ReduceMean", [name, graph.weight("axes", np.array(axes))], "mean", keepdims=keepdims)
    graph.add("Flatten", [name], "logits", axis=1)
    return onnx.shape_inference.infer_shapes(graph.model((3, 4, 5), TensorProto.FLOAT, "logits", 3))


@pytest.mark.parametrize(("keepdims", "axes"), [(0, [2, 3]), (1, [2, 3]), (0, [-1, -2])])
def test_a_mean_over_the_image_becomes_a_pooling_with_the_same_result(keepdims: int, axes: list[int]) -> None:
    model = mean_net(keepdims, axes)
    raw = np.random.default_rng(0).normal(0, 1, (2, 3, 4, 5)).astype(np.float32)
    before = run(model, raw)
    folding.pool_globally(model)
    onnx.checker.check_model(model, full_check=True)
    assert "GlobalAveragePool" in graphs.operators(model)
    assert "ReduceMean" not in graphs.operators(model)
    np.testing.assert_allclose(run(model, raw), before, rtol=1e-6)


def test_another_mean_stays() -> None:
    model = mean_net(0, [1])
    folding.pool_globally(model)
    assert "ReduceMean" in graphs.operators(model)


@pytest.mark.parametrize("channels", [1, 3])
def test_raw_input_is_exact_inside_the_image(tmp_path: Path, channels: int) -> None:
    """Without padding nothing changes; the network's own convolutions are made unpadded for that."""
    samples, labels = noisy_patterns(480, channels)
    prepared = Prepared.open(write_prepared(tmp_path / "data", samples, labels, ["a", "b", "c", "d"]))
    model = conv_net(prepared, (4,))
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    pads = next(found for found in conv.attribute if found.name == "pads")
    pads.CopyFrom(helper.make_attribute("pads", [0, 0, 0, 0]))
    model = outputs_of_the_convolution(model)
    ready = prepared_graph(model, tmp_path)
    raw = prepared.read(np.arange(5))
    before = run(ready, raw)
    zero_point = folding.take_raw_input(ready)
    assert zero_point is not None
    assert abs(zero_point - 255 * np.mean(prepared.info.mean)) <= 0.5
    np.testing.assert_allclose(run(ready, raw), before, rtol=1e-4, atol=1e-4)
    assert {"Mul", "Add"} & graphs.operators(ready) == set()


def outputs_of_the_convolution(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph cut after its first convolution."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    end = next(n for n, node in enumerate(cut.graph.node) if node.op_type == "Conv")
    output = cut.graph.node[end].output[0]
    del cut.graph.node[end + 1 :]
    del cut.graph.output[:]
    cut.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 4, 14, 14]))
    return cut


def test_padding_stands_for_the_nearest_raw_value(images: Path, tmp_path: Path) -> None:
    prepared = Prepared.open(images)
    ready = prepared_graph(conv_net(prepared, (4, 8)), tmp_path)
    raw = prepared.read(prepared.indices("test"))
    before = run(ready, raw)
    folding.take_raw_input(ready)
    after = run(ready, raw)
    assert np.abs(after - before).max() < 0.01 * np.abs(before).max()
    assert (after.argmax(1) == before.argmax(1)).mean() > 0.99


def test_no_float_operator_is_left_before_the_first_integer_convolution(images: Path, tmp_path: Path) -> None:
    prepared = Prepared.open(images)
    ready = quantization.rewrite(prepared_graph(conv_net(prepared, (4, 8)), tmp_path), raw_input=True)
    assert ready.zero_point is not None
    path = tmp_path / "net.onnx"
    model = quantized(path, prepared, RAW)
    reader = next(node for node in model.graph.node if "input" in node.input)
    assert reader.op_type == "Transpose"
    after = next(node for node in model.graph.node if reader.output[0] in node.input)
    assert after.op_type == "DequantizeLinear"
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert float(constants[after.input[1]]) == 1.0
    assert int(constants[after.input[2]]) == ready.zero_point
    assert not {"Cast", "Mul", "Sub"} & graphs.operators(model)


def test_rows_have_no_raw_input(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    ready = prepared_graph(dense_net(rows()), tmp_path)
    assert folding.take_raw_input(ready) is None
    with pytest.raises(quantization.QuantizationFailed, match="does not start with one uint8 image"):
        quantization.rewrite(ready, raw_input=True)
