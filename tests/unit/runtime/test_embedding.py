"""The identity inside files: one key, read back, never over another's."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file

from stages.runtime import embedding


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph), path)
    return path


def test_safetensors_keep_their_tensors(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tensors = {"a": np.arange(5, dtype=np.float32), "b": np.ones((2, 3), dtype=np.int64)}
    save_file(tensors, path)
    embedding.embed_all(tmp_path, '{"stage":"train"}')
    assert embedding.read(path) == {"stage": "train"}
    for name, value in load_file(path).items():
        np.testing.assert_array_equal(value, tensors[name])


def test_a_file_that_was_handed_on_keeps_its_maker(tmp_path: Path, onnx_file: Path) -> None:
    save_file({"a": np.zeros(1)}, tmp_path / "w.safetensors")
    embedding.embed_all(tmp_path, '{"stage":"train"}')
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    embedding.embed_all(tmp_path, '{"stage":"distill"}')
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert embedding.read(onnx_file) == {"stage": "train"}
    onnx.checker.check_model(onnx.load(onnx_file))


def test_no_identity_is_none(tmp_path: Path, onnx_file: Path) -> None:
    save_file({"a": np.zeros(1)}, tmp_path / "w.safetensors")
    assert embedding.read(tmp_path / "w.safetensors") is None
    assert embedding.read(onnx_file) is None


def test_a_file_that_was_cut_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": np.zeros(1000)}, path, metadata={"shipway": '{"stage":"train"}'})
    assert embedding.read(path) == {"stage": "train"}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut off"):
        embedding.read(path)
