"""ONNX Runtime sessions on the CPU with a fixed number of threads."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from stages.runtime.exits import BadData

INPUT_NAME, OUTPUT_NAME = "input", "logits"
_ERRORS_ONLY = 3


class RunFailed(BadData):
    """A model that loads, but crashes or gives NaN or infinity when it runs."""


def session(path: Path, threads: int, *, optimize: bool = True) -> ort.InferenceSession:
    """Loads a model file; `optimize=False` runs the graph as it stands.

    Raises `BadData` when the file is missing or damaged, or uses what this version of ONNX Runtime cannot run.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not path.is_file():
        raise BadData(f"{path} is missing; run the stage that made it again, or `dvc checkout`")
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a dozen exception types without a common base.
        raise BadData(f"{path} cannot be loaded by ONNX Runtime {ort.__version__}: {one_line(error)}") from None


def run(loaded: ort.InferenceSession, raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Logits float32 (N, classes) of raw samples (N, ...)."""
    (logits,) = loaded.run([OUTPUT_NAME], {INPUT_NAME: raw})
    return np.asarray(logits)


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception's text on one line, cut to `limit` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
