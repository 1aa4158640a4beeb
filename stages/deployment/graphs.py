"""What a saved ONNX graph holds: operators, weights, number types, external data, debug text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from stages.runtime.embedding import KEY
from stages.runtime.exits import BadData

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""The one entry of a node's metadata that is kept: it maps an operator back to its layer."""

TRAINING_ONLY = frozenset({"BatchNormalization", "Dropout"})
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "DynamicQuantize", "ConvInteger", "MatMulInteger")
_SINGLE_FILE_BYTES = 2**31 - 2**20
"""Protobuf holds less than 2 GiB in one message."""


def load(path: Path) -> onnx.ModelProto:
    """The model with its external data. Raises `BadData`."""
    try:
        return onnx.load(path)
    except FileNotFoundError as error:
        raise BadData(f"{error.filename or path} is missing; run the stage that made it, or `dvc checkout`") from None
    except Exception as error:  # protobuf's DecodeError, onnx's ValidationError: without a common base.
        raise BadData(f"{path} is no readable ONNX model ({error}); make it again") from None


def save(model: onnx.ModelProto, path: Path, single_file_bytes: int = _SINGLE_FILE_BYTES) -> None:
    """Writes deterministic bytes: one file, or `<name>.onnx.data` beside it when it would be too large for one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if model.ByteSize() > single_file_bytes:
        data = f"{path.name}.data"
        (path.parent / data).unlink(missing_ok=True)  # onnx appends to a file that is there.
        onnx.save_model(model, path, save_as_external_data=True, location=data)
        model = onnx.load(path, load_external_data=False)
    path.write_bytes(model.SerializeToString(deterministic=True))


def files_of(path: Path) -> list[Path]:
    """The model's file and the files of its external data. Raises `BadData` for one outside the model's folder."""
    found = [path]
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                data = path.parent / entry.value
                if data.parent.resolve() != path.parent.resolve():
                    raise BadData(f"{path} names external data outside its folder: {entry.value!r}; export it again")
                if data not in found:
                    found.append(data)
    return found


def size_bytes(path: Path) -> int:
    """Size of the model on disk, external data included."""
    return sum(file.stat().st_size for file in files_of(path))


def opset(model: onnx.ModelProto) -> int:
    """Version of the standard operator set (domain "")."""
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def operators(model: onnx.ModelProto) -> set[str]:
    """Types of all operators, those in sub-graphs and functions included."""
    return {node.op_type for node in nodes(model)}


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those in sub-graphs and functions included."""
    for graph in _graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether the graph holds integer operators already."""
    return any(operator.startswith(_QUANTIZED) for operator in operators(model))


def float_types(model: onnx.ModelProto) -> set[str]:
    """Names of the floating types among the weights and the inputs: `FLOAT`, `FLOAT16`, ..."""
    types = {tensor.data_type for graph in _graphs(model) for tensor in graph.initializer}
    types |= {entry.type.tensor_type.elem_type for entry in model.graph.input}
    names = {onnx.TensorProto.DataType.Name(number) for number in types}
    return {name for name in names if "FLOAT" in name or name == "DOUBLE"}


def non_finite_weights(model: onnx.ModelProto) -> list[str]:
    """Names of the weights that hold NaN or infinity."""
    floating = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)
    return [
        tensor.name
        for graph in _graphs(model)
        for tensor in graph.initializer
        if tensor.data_type in floating and not np.isfinite(numpy_helper.to_array(tensor)).all()
    ]


def strip_debug(model: onnx.ModelProto) -> None:
    """Removes what the exporter writes of the exporting machine: stack traces with paths, source text, signatures.

    Of each node's metadata the name scopes stay. Without this the bytes differ from folder to folder.
    """
    model.ClearField("doc_string")
    for graph in _graphs(model):
        for holder in (graph, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
            _clear(holder)
    for function in model.functions:
        _clear(function)
        for entry in function.value_info:
            _clear(entry)
    for node in nodes(model):
        scopes = [entry.value for entry in node.metadata_props if entry.key == NAME_SCOPES]
        _clear(node)
        if scopes:
            node.metadata_props.add(key=NAME_SCOPES, value=scopes[0])


def _clear(holder: Any) -> None:
    holder.ClearField("metadata_props")
    holder.ClearField("doc_string")


def drop_metadata(model: onnx.ModelProto) -> None:
    """Removes the model's own metadata, the float model's identity included: a derived file gets its maker's."""
    model.ClearField("metadata_props")


def identity_text(path: Path) -> str | None:
    """The embedded identity as it stands in the file, or None."""
    model = onnx.load(path, load_external_data=False)
    return next((entry.value for entry in model.metadata_props if entry.key == KEY), None)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    todo = [model.graph]
    while todo:
        graph = todo.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    todo.append(attribute.g)
                todo.extend(attribute.graphs)
