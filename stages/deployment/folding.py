"""Rewrites of the float graph that let INT8 reach further; made for the INT8 candidates only.

`pool_globally` is exact. `take_raw_input` is exact inside an image; where a convolution pads, 0 becomes the nearest raw
value, less than half a step away with one channel. The accuracy gate judges it like any other effect of quantization.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from stages.deployment.ranges import Range
from stages.deployment.sessions import INPUT_NAME

Array = npt.NDArray[Any]

SHIFTED = "shipway_shifted"
"""The raw values minus the zero point, as float: quantized with scale 1 they are the raw values, bit for bit."""

_WEIGHTS, _BIAS, _ZERO_POINT = "shipway_first_weights", "shipway_first_bias", "shipway_zero_point"
_HEIGHT_AND_WIDTH = [2, 3]
_LARGEST_RAW = 255


def pool_globally(model: onnx.ModelProto) -> None:
    """ReduceMean over height and width -> GlobalAveragePool (and Flatten): these have integer forms. In place."""
    constants = _constants(model)
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in model.graph.value_info}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        axes = _reduced(node, constants) if node.op_type == "ReduceMean" else None
        if axes is None or ranks.get(node.input[0]) != 4 or sorted(axis % 4 for axis in axes) != _HEIGHT_AND_WIDTH:
            nodes.append(node)
        elif _attribute(node, "keepdims", 1):
            nodes.append(helper.make_node("GlobalAveragePool", node.input[:1], node.output, node.name))
        else:
            pooled = f"{node.output[0]}_pooled"
            nodes.append(helper.make_node("GlobalAveragePool", node.input[:1], [pooled], f"{node.name}_pool"))
            nodes.append(helper.make_node("Flatten", [pooled], node.output, node.name, axis=1))
    _replace_nodes(model, nodes)


def take_raw_input(model: onnx.ModelProto) -> int | None:
    """Moves the normalisation of uint8 images into the first convolution. In place; the zero point, None if impossible.

    Cast, Transpose, Mul(factor), Add(offset), Conv(w, b) become Cast, Transpose, Sub(z), Conv(w * factor, b'), where z
    is the raw value nearest to what stands for 0 after the normalisation.
    """
    chain = _normalisation(model)
    if chain is None:
        return None
    transpose, mul, add, conv = chain
    constants = _constants(model)
    weights = constants[conv.input[1]].astype(np.float64)
    channels = weights.shape[1]
    factor, offset = (_per_channel(constants, node, channels) for node in (mul, add))
    if factor is None or offset is None or not np.all(factor):
        return None
    zero_point = int(np.clip(np.rint(np.mean(-offset / factor)), 0, _LARGEST_RAW))
    rest = (offset + zero_point * factor).reshape(1, channels, 1, 1)
    bias = constants[conv.input[2]].astype(np.float64) if len(conv.input) > 2 else np.zeros(len(weights))
    _add_constant(model, _WEIGHTS, weights * factor.reshape(1, channels, 1, 1))
    _add_constant(model, _BIAS, bias + (weights * rest).sum(axis=(1, 2, 3)))
    _add_constant(model, _ZERO_POINT, np.array(zero_point))
    shift = helper.make_node("Sub", [transpose.output[0], _ZERO_POINT], [SHIFTED], SHIFTED)
    place = list(model.graph.node).index(conv)
    model.graph.node[place].input[:] = [SHIFTED, _WEIGHTS, _BIAS]
    _replace_nodes(model, [*model.graph.node[:place], shift, *model.graph.node[place:]])
    shapes = {info.name: info for info in model.graph.value_info}
    shifted = model.graph.value_info.add()
    shifted.CopyFrom(shapes[add.output[0]])
    shifted.name = SHIFTED
    _drop_dead(model)
    return zero_point


def raw_range(zero_point: int) -> Range:
    """The range of `SHIFTED` that gives scale 1 and this zero point."""
    return float(-zero_point), float(_LARGEST_RAW - zero_point)


def feed_raw_input(model: onnx.ModelProto) -> None:
    """In the quantized graph, the transposed raw input itself for what QuantizeLinear makes of `SHIFTED`. In place."""
    nodes = list(model.graph.node)
    place = next(n for n, node in enumerate(nodes) if node.op_type == "QuantizeLinear" and node.input[0] == SHIFTED)
    scale = _constants(model)[nodes[place].input[1]]
    if float(scale) != 1.0:
        raise ValueError(f"raw input needs scale 1, the quantizer chose {float(scale)}")
    order = next(node for node in nodes if node.op_type == "Transpose")
    permutation = list(_attribute(order, "perm", []))
    nodes[place] = helper.make_node("Transpose", [INPUT_NAME], nodes[place].output, "shipway_raw", perm=permutation)
    _replace_nodes(model, nodes)
    _drop_dead(model)


def _normalisation(
    model: onnx.ModelProto,
) -> tuple[onnx.NodeProto, onnx.NodeProto, onnx.NodeProto, onnx.NodeProto] | None:
    """Transpose, Mul, Add, Conv of the chain that starts at a uint8 input, where each has one reader only."""
    given = model.graph.input[0]
    if len(model.graph.input) != 1 or given.type.tensor_type.elem_type != onnx.TensorProto.UINT8:
        return None
    found: list[onnx.NodeProto] = []
    name = given.name
    for operator in ("Cast", "Transpose", "Mul", "Add", "Conv"):
        readers = [node for node in model.graph.node if name in node.input]
        if len(readers) != 1 or readers[0].op_type != operator or readers[0].input[0] != name:
            return None
        found.append(readers[0])
        name = readers[0].output[0]
    conv = found[-1]
    known = set(_constants(model))
    if _attribute(conv, "group", 1) != 1 or not set(conv.input[1:]) <= known:
        return None
    return found[1], found[2], found[3], conv


def _per_channel(constants: dict[str, Array], node: onnx.NodeProto, channels: int) -> Array | None:
    value = constants.get(node.input[1])
    if value is None or value.size not in (1, channels) or (value.size > 1 and value.shape[-2:] != (1, 1)):
        return None
    return np.broadcast_to(value.astype(np.float64).ravel(), (channels,))


def _reduced(node: onnx.NodeProto, constants: dict[str, Array]) -> list[int] | None:
    if len(node.input) > 1:
        value = constants.get(node.input[1])
        return None if value is None else [int(axis) for axis in value.ravel()]
    return list(_attribute(node, "axes", [])) or None  # Before opset 18 an attribute.


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(found) for found in node.attribute if found.name == name), default)


def _constants(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _add_constant(model: onnx.ModelProto, name: str, value: Array) -> None:
    model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))


def _replace_nodes(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> None:
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copied)


def _drop_dead(model: onnx.ModelProto) -> None:
    """Removes nodes, weights and shapes that nothing reads any more."""
    needed = {info.name for info in model.graph.output}
    alive: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            alive.append(node)
            needed |= set(node.input)
    _replace_nodes(model, alive[::-1])
    for field in (model.graph.initializer, model.graph.value_info):
        kept = [entry for entry in field if entry.name in needed]
        del field[:]
        field.extend(kept)
