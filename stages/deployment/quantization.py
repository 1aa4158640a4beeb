"""Static quantization of an ONNX file: the float graph prepared, candidates made, each of them run."""

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import QuantType
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from stages.deployment import folding, graphs, sessions
from stages.deployment.number_types import NumberTypes
from stages.deployment.quiet import quiet
from stages.deployment.ranges import Range
from stages.runtime.exits import BadData

_SHOWN = 3


@dataclass(frozen=True)
class Candidate:
    """One way to quantize a graph."""

    name: str
    operators: tuple[str, ...] | None
    """Types of operators that are quantized; None: all that ONNX Runtime can."""
    raw_input: bool = False
    """The first convolution takes the raw uint8 image: no float operator is left before it."""


CANDIDATES = (
    Candidate("int8_raw_input", None, raw_input=True),
    Candidate("int8_all", None),
    Candidate("int8_products", ("Conv", "Gemm", "MatMul")),
)
"""In order of promise."""


class QuantizationFailed(Exception):
    """ONNX Runtime cannot make this candidate; the reason in one line."""


def require_float(model: onnx.ModelProto, path: Path) -> None:
    """Raises `BadData` for what ONNX Runtime would only answer with a cryptic error, or not at all."""
    if graphs.is_quantized(model):
        raise BadData(f"{path} must be a float model, it is quantized already; quantize the model it was made from")
    if odd := sorted(graphs.float_types(model) - {"FLOAT"}):
        raise BadData(f"{path} must hold float32 weights, it holds {', '.join(odd)}; export the model in float32")
    if broken := graphs.non_finite_weights(model):
        shown = ", ".join(broken[:_SHOWN])
        raise BadData(
            f"{path} has NaN or infinity in {len(broken)} weights: {shown}; train it again", {"weights": shown}
        )


def preprocess(path: Path) -> tuple[onnx.ModelProto, str | None]:
    """The float graph optimized and with the shape of every tensor; and what could not be done, or None.

    Where the symbolic shape inference fails, plain ONNX shape inference is sound too: a tensor without a known type
    then simply stays in float.
    """
    with tempfile.TemporaryDirectory(prefix="shipway-quantize-") as folder, quiet():
        target = Path(folder) / "prepared.onnx"
        try:
            quant_pre_process(path, target)
            return onnx.load(target), None
        except Exception as error:  # It fails in many ways: PixelShuffle, einsum, in-place operations.
            why = f"quant_pre_process failed, plain shape inference was used: {sessions.one_line(error, 160)}"
            return onnx.shape_inference.infer_shapes(graphs.load(path)), why.replace(folder, "")


@dataclass(frozen=True)
class Ready:
    """A float graph rewritten for a candidate; its activations' ranges are to be calibrated on it."""

    model: onnx.ModelProto
    zero_point: int | None
    """Set where the first convolution is to take the raw image: what stands for 0."""


def rewrite(prepared: onnx.ModelProto, raw_input: bool) -> Ready:
    """Rewrites a copy of what `preprocess` gave. Raises `QuantizationFailed` where raw input cannot be."""
    model = copy.deepcopy(prepared)
    folding.pool_globally(model)
    zero_point = folding.take_raw_input(model) if raw_input else None
    if raw_input and zero_point is None:
        raise QuantizationFailed("the graph does not start with one uint8 image, its normalisation and a convolution")
    return Ready(onnx.shape_inference.infer_shapes(model), zero_point)


def quantize(ready: Ready, candidate: Candidate, ranges: Mapping[str, Range], types: NumberTypes) -> onnx.ModelProto:
    """The graph with pairs of QuantizeLinear and DequantizeLinear, without the float model's identity.

    `ready` is not changed. Raises `QuantizationFailed`.
    """
    known = dict(ranges)
    if ready.zero_point is not None:
        known[folding.SHIFTED] = folding.raw_range(ready.zero_point)
    wanted = candidate.operators or sorted({*QDQRegistry, *QLinearOpsRegistry})
    with quiet():
        try:
            quantizer = QDQQuantizer(
                copy.deepcopy(ready.model),
                True,  # One scale per output channel.
                types.reduce_range,
                QuantType.QInt8,
                QuantType.QUInt8,
                _as_tensors_data(known),
                [],
                [],
                wanted,
                {},
            )
            quantizer.quantize_model()
            quantizer.model.topological_sort()
            model: onnx.ModelProto = quantizer.model.model
            if ready.zero_point is not None:
                folding.feed_raw_input(model)
            graphs.drop_metadata(model)
            onnx.checker.check_model(model)
        except Exception as error:  # Its fusions fail in many ways.
            raise QuantizationFailed(sessions.one_line(error)) from None
    if not graphs.is_quantized(model):
        raise QuantizationFailed("no operator of this graph can be quantized")
    return model


def _as_tensors_data(ranges: Mapping[str, Range]) -> TensorsData:
    data = {name: TensorData(lowest=np.float32(low), highest=np.float32(high)) for name, (low, high) in ranges.items()}
    return TensorsData(CalibrationMethod.MinMax, data)
