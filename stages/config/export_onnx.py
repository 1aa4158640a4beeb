"""Section `export_onnx`: from PyTorch to ONNX."""

from typing import Annotated

from pydantic import Field

from stages.config.base import Positive, Section


class ExportOnnx(Section):
    """Dynamo export with raw input (normalisation inside the graph) and a dynamic batch."""

    opset: Annotated[int, Field(ge=18, le=23)] = 20
    """ONNX operator set. Below 18 the exporter would hand back 18 without a word."""

    max_error: Positive = 1e-4
    """Gate: largest relative difference between ONNX Runtime's outputs and PyTorch's."""
