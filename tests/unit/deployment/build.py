"""Small real data and small real ONNX models: random convolutions, a classifier solved by least squares on top."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from stages.data.prepared import SPLITS, Info, Prepared
from stages.runtime import embedding
from stages.runtime.files import canonical_json

CLASSES = 4
SIDE = 16
Floats = npt.NDArray[np.float32]


def write_prepared(
    folder: Path, samples: npt.NDArray[Any], labels: npt.NDArray[np.int64], names: Sequence[str]
) -> Path:
    """Prepared data as the stage leaves it: half train (all of it calibration too), a quarter val, a quarter test."""
    folder.mkdir(parents=True)
    count = len(samples)
    bounds = {"train": (0, count // 2), "val": (count // 2, 3 * count // 4), "test": (3 * count // 4, count)}
    bounds["calibration"] = bounds["train"]
    np.save(folder / "samples.npy", samples)
    np.save(folder / "labels.npy", labels)
    for split in SPLITS:
        np.save(folder / f"{split}.npy", np.arange(*bounds[split], dtype=np.int64))
    scale = 255.0 if samples.dtype == np.uint8 else 1.0
    train = samples[: count // 2].astype(np.float64) / scale
    axes = tuple(range(train.ndim - 1))
    with np.errstate(invalid="ignore"):
        mean, std = train.mean(axis=axes), train.std(axis=axes)
    info = Info(
        kind="array",
        hash="0" * 64,
        shape=samples.shape[1:],
        dtype=samples.dtype.name,
        classes=tuple(names),
        mean=tuple(np.nan_to_num(mean).tolist()),
        std=tuple(np.nan_to_num(std).tolist()),
        scale=scale,
        splits={split: bounds[split][1] - bounds[split][0] for split in SPLITS},
        counts={split: np.bincount(labels[slice(*bounds[split])], minlength=len(names)).tolist() for split in SPLITS},
        dropped={},
        duplicates={},
    )
    (folder / "info.json").write_text(json.dumps(info.to_json()))
    return folder


def noisy_patterns(count: int, channels: int = 1, seed: int = 0) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images uint8 (count, SIDE, SIDE, channels) of CLASSES coarse patterns under noise, and their labels."""
    random = np.random.default_rng(seed)
    coarse = random.uniform(40, 215, (CLASSES, 4, 4, channels))
    patterns = coarse.repeat(SIDE // 4, axis=1).repeat(SIDE // 4, axis=2)
    labels = random.integers(0, CLASSES, count)
    images = patterns[labels] + random.normal(0, 40, (count, SIDE, SIDE, channels))
    return images.clip(0, 255).astype(np.uint8), labels.astype(np.int64)


@dataclass
class Graph:
    """Collects nodes and weights of an ONNX model."""

    nodes: list[onnx.NodeProto]
    weights: list[onnx.TensorProto]

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=f"node_{output}", **attributes))
        return output

    def weight(self, name: str, value: npt.NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def model(self, shape: Sequence[int], dtype: int, output: str, width: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("input", dtype, ["batch", *shape])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", width])],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def conv_net(prepared: Prepared, channels: Sequence[int], seed: int = 1) -> onnx.ModelProto:
    """Raw uint8 images -> normalised -> convolutions with ReLU -> mean -> a linear classifier that is really solved."""
    random = np.random.default_rng(seed)
    graph = Graph([], [])
    scale = np.asarray(prepared.info.std, np.float32) * prepared.info.scale
    offset = -np.asarray(prepared.info.mean, np.float32) / np.asarray(prepared.info.std, np.float32)
    hidden = graph.add("Cast", ["input"], "raw", to=TensorProto.FLOAT)
    hidden = graph.add("Transpose", [hidden], "planes", perm=[0, 3, 1, 2])
    hidden = graph.add("Mul", [hidden, graph.weight("factor", (1 / scale).reshape(1, -1, 1, 1))], "scaled")
    hidden = graph.add("Add", [hidden, graph.weight("offset", offset.reshape(1, -1, 1, 1))], "normalised")
    before = prepared.info.shape[2]
    for number, width in enumerate(channels):
        kernel = random.normal(0, np.sqrt(2 / (9 * before)), (width, before, 3, 3)).astype(np.float32)
        bias = np.zeros(width, np.float32)
        names = [hidden, graph.weight(f"w{number}", kernel), graph.weight(f"b{number}", bias)]
        hidden = graph.add(
            "Conv", names, f"conv{number}", kernel_shape=[3, 3], pads=[1] * 4, strides=[1 + number % 2] * 2
        )
        hidden = graph.add("Relu", [hidden], f"relu{number}")
        before = width
    hidden = graph.add("AveragePool", [hidden], "pooled", kernel_shape=[2, 2], strides=[2, 2])
    hidden = graph.add("Flatten", [hidden], "features")
    side = SIDE // 2 ** (len(channels) // 2) // 2
    return _with_classifier(graph, prepared, hidden, before * side * side, TensorProto.UINT8)


def dense_net(prepared: Prepared, width: int = 64, seed: int = 1) -> onnx.ModelProto:
    """Raw float32 rows -> one hidden layer with ReLU -> a linear classifier that is really solved."""
    random = np.random.default_rng(seed)
    graph = Graph([], [])
    columns = prepared.info.shape[0]
    weights = random.normal(0, 1 / np.sqrt(columns), (columns, width)).astype(np.float32)
    names = ["input", graph.weight("w0", weights), graph.weight("b0", np.zeros(width, np.float32))]
    hidden = graph.add("Relu", [graph.add("Gemm", names, "gemm0")], "features")
    return _with_classifier(graph, prepared, hidden, width, TensorProto.FLOAT)


def _with_classifier(graph: Graph, prepared: Prepared, features: str, width: int, dtype: int) -> onnx.ModelProto:
    trunk = graph.model(prepared.info.shape, dtype, features, width)
    indices = prepared.indices("train")
    raw = np.nan_to_num(prepared.read(indices), posinf=0, neginf=0)
    (seen,) = ort.InferenceSession(trunk.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"input": raw}
    )
    wanted = np.eye(len(prepared.info.classes))[prepared.labels[indices]]
    seen = np.asarray(seen, np.float64)
    solved = np.linalg.solve(seen.T @ seen + 1e-1 * len(seen) * np.eye(width), seen.T @ (wanted - wanted.mean(axis=0)))
    names = [
        features,
        graph.weight("wc", solved.astype(np.float32)),
        graph.weight("bc", np.zeros(len(wanted[0]), np.float32)),
    ]
    graph.add("Gemm", names, "logits")
    return graph.model(prepared.info.shape, dtype, "logits", len(wanted[0]))


def embed(model: onnx.ModelProto, path: Path, stage: str = "export_onnx") -> Path:
    """Saves a model as the pipeline does: with an identity inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    embedding.embed_all(path, canonical_json({"stage": stage, "params": {}}))
    return path
