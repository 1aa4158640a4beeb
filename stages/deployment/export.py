"""From a PyTorch module to an ONNX model: raw input, dynamic batch, the opset that was asked for, no debug text.

Imports torch and the exporter: slow, for `export_onnx` only.
"""

import re
from collections.abc import Sequence

import onnx
import torch
from torch import Tensor, nn

from stages.deployment import graphs
from stages.deployment.export_errors import explain
from stages.deployment.quiet import quiet
from stages.deployment.sessions import INPUT_NAME, OUTPUT_NAME
from stages.runtime.exits import BadParams, StageError

BATCH_DIMENSION = "batch"
_EXAMPLE_BATCH = 2
"""0 and 1 are special to torch.export: it would fix them in the graph."""


class Deployable(nn.Module):
    """Raw samples -> logits: the preprocessing and the network as one module."""

    def __init__(self, preprocess: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.network = network

    def forward(self, raw: Tensor) -> Tensor:
        """uint8 (N, H, W, C) or float32 (N, D) -> float32 (N, classes)."""
        logits: Tensor = self.network(self.preprocess(raw))
        return logits


def export(module: nn.Module, shape: Sequence[int], dtype: torch.dtype, opset: int, what: str) -> onnx.ModelProto:
    """Exports a module that takes raw samples (N, *shape) of `dtype`. `what` names it in messages.

    The result has passed ONNX's checker; BatchNorm is folded into the convolutions; equal modules give equal bytes, on
    any machine and in any folder. Raises `BadParams` for a module in training mode, for one that cannot be traced
    (naming its line) and for an opset that the exporter does not give.
    """
    training = [name or "the module itself" for name, child in module.named_modules() if child.training]
    if training:
        raise BadParams(
            f"{what} must be in evaluation mode to be exported, {len(training)} of its layers are in training mode "
            f"(first: {training[0]}): Dropout would stay alive; call .eval() and do not switch it back in forward"
        )
    model = _trace(module, torch.zeros((_EXAMPLE_BATCH, *shape), dtype=dtype), opset, what)
    graphs.strip_debug(model)
    _name_batch(model)
    _check(model, opset, what)
    return model


def _trace(module: nn.Module, example: Tensor, opset: int, what: str) -> onnx.ModelProto:
    program = None
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(
                module, (example,), dynamic_shapes=({0: torch.export.Dim(BATCH_DIMENSION)},), strict=False
            )
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                verbose=False,
            )
            if exported is None:
                raise StageError("torch.onnx.export(dynamo=True) gave no program")
            return exported.model_proto
    except StageError:
        raise
    except Exception as error:  # The user's forward runs inside: it can raise anything.
        raise BadParams(f"{what} cannot be exported to ONNX: {explain(error, program)}") from error


def _name_batch(model: onnx.ModelProto) -> None:
    """torch.export calls the batch `s77` or alike, also inside expressions; it is named `batch` everywhere."""
    first = model.graph.input[0].type.tensor_type.shape.dim[0]
    if not first.dim_param:
        return  # `_check` reports it.
    symbol = re.compile(rf"\b{re.escape(first.dim_param)}\b")
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:
                dimension.dim_param = symbol.sub(BATCH_DIMENSION, dimension.dim_param)


def _check(model: onnx.ModelProto, opset: int, what: str) -> None:
    got = graphs.opset(model)
    if got != opset:
        raise BadParams(
            f"{what}: opset {opset} was asked for, the exporter gave {got}; set export_onnx.opset to {got}, or use a "
            "model whose operators exist in the one that you need"
        )
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:
        raise BadParams(f"{what}: the exported graph is no valid ONNX: {' '.join(str(error).split())[:300]}") from error
    left = sorted(graphs.operators(model) & graphs.TRAINING_ONLY)
    if left:
        raise BadParams(f"{what}: the exported graph still holds {', '.join(left)}; it should have been folded away")
    for value in (*model.graph.input, *model.graph.output):
        batch = value.type.tensor_type.shape.dim[0]
        if batch.dim_param != BATCH_DIMENSION:
            found = batch.dim_param or batch.dim_value
            raise BadParams(
                f"{what}: the batch of {value.name!r} must be dynamic, the exported graph fixes it at {found}"
            )
