"""Export of PyTorch modules: what is kept, what is refused, what is stripped."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from stages.deployment import export_errors, graphs, sessions
from stages.deployment.export import Deployable, export
from stages.models.preprocess import Preprocess
from stages.runtime.exits import BadParams
from tests.conftest import ROOT

SHAPE = (8, 8, 1)


class Shared(nn.Module):
    """One convolution used twice, BatchNorm and Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.twice = nn.Conv2d(6, 6, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(images)))
        hidden = torch.relu(self.twice(torch.relu(self.twice(hidden))))
        logits: Tensor = self.head(self.drop(hidden.mean((2, 3))))
        return logits


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 4)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        if flat.sum() > 0:  # The line that the message must name.
            flat = -flat
        logits: Tensor = self.head(flat)
        return logits


class FixedBatch(Branching):
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.reshape(2, 64))
        return logits


class NoSuchOperator(Branching):
    def forward(self, images: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.head(images.flatten(1)))  # ONNX has none.


class ThroughNumpy(Branching):
    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.head(images.flatten(1)).numpy() * 2)  # Leaves the graph.


def deployable(network: nn.Module) -> Deployable:
    torch.manual_seed(0)
    return Deployable(Preprocess([0.3], [0.4], 255.0, SHAPE), network).eval()


@pytest.fixture(scope="module")
def shared() -> tuple[Deployable, onnx.ModelProto]:
    module = deployable(Shared())
    with torch.no_grad():
        module.network.norm.running_mean += torch.randn(6)
        module.network.norm.running_var += torch.rand(6)
    return module, export(module, SHAPE, torch.uint8, 20, "the model")


def test_the_graph_takes_raw_images_in_any_batch(shared: tuple[Deployable, onnx.ModelProto], tmp_path: Path) -> None:
    module, model = shared
    path = tmp_path / "m.onnx"
    graphs.save(model, path)
    loaded = sessions.session(path, 1)
    for size in (1, 3, 7):
        raw = np.random.default_rng(size).integers(0, 256, (size, *SHAPE)).astype(np.uint8)
        with torch.no_grad():
            expected = module(torch.from_numpy(raw)).numpy()
        np.testing.assert_allclose(sessions.run(loaded, raw), expected, rtol=1e-4, atol=1e-5)
    assert model.graph.input[0].name == "input"
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert model.graph.output[0].name == "logits"
    for value in (model.graph.input[0], model.graph.output[0]):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_nothing_of_the_training_is_left_and_shared_weights_stay_shared(
    shared: tuple[Deployable, onnx.ModelProto],
) -> None:
    _, model = shared
    assert not graphs.operators(model) & graphs.TRAINING_ONLY
    kernels = [tensor for tensor in model.graph.initializer if list(tensor.dims) == [6, 6, 3, 3]]
    assert len(kernels) == 1
    assert graphs.opset(model) == 20


def test_no_path_and_no_source_text_is_inside_but_the_layers_are(shared: tuple[Deployable, onnx.ModelProto]) -> None:
    content = shared[1].SerializeToString()
    for leak in (str(ROOT), "site-packages", "test_export", ".py", "stack_trace", "hidden = "):
        assert leak.encode() not in content, leak
    scopes = [e.value for node in shared[1].graph.node for e in node.metadata_props]
    assert any("network.twice" in scope for scope in scopes)


def test_two_processes_in_two_folders_give_the_same_bytes(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import torch
from torch import nn
from stages.deployment import graphs
from stages.deployment.export import Deployable, export
from stages.models.preprocess import Preprocess
torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
module = Deployable(Preprocess([0.3], [0.4], 255.0, (8, 8, 1)), network).eval()
graphs.save(export(module, (8, 8, 1), torch.uint8, 20, "the model"), Path("m.onnx"))
"""
    running = {}
    for seed in ("1", "2"):
        folder = tmp_path / f"folder {seed}"
        folder.mkdir()
        (folder / "script.py").write_text(script)
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)}
        running[folder] = subprocess.Popen(
            [sys.executable, "script.py"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    for process in running.values():
        assert process.communicate() == (b"", None)
        assert process.returncode == 0
    first, second = ((folder / "m.onnx").read_bytes() for folder in running)
    assert first == second


def test_a_model_in_training_mode_is_refused() -> None:
    module = deployable(Shared())
    module.network.drop.train()
    with pytest.raises(BadParams, match=r"evaluation mode.*network\.drop"):
        export(module, SHAPE, torch.uint8, 20, "the model")


def test_an_if_on_a_tensor_is_refused_and_its_line_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadParams) as refused:
        export(deployable(Branching()), SHAPE, torch.uint8, 20, "the model")
    said = refused.value.sentence
    assert "\n" not in said
    assert "test_export.py: if flat.sum() > 0:" in said
    assert "torch.where" in said
    assert capfd.readouterr().err == ""


def test_an_operator_that_onnx_lacks_is_named_with_its_line() -> None:
    with pytest.raises(BadParams, match=r"no operator for .*bessel_j0.*test_export\.py: return torch\.special"):
        export(deployable(NoSuchOperator()), SHAPE, torch.uint8, 20, "the model")


def test_leaving_pytorch_in_the_forward_is_refused_with_its_line() -> None:
    with pytest.raises(BadParams, match=r"numpy.*test_export\.py: return torch\.from_numpy"):
        export(deployable(ThroughNumpy()), SHAPE, torch.uint8, 20, "the model")


def test_a_fixed_batch_is_refused() -> None:
    with pytest.raises(BadParams, match="fixes the size of the batch"):
        export(deployable(FixedBatch()), SHAPE, torch.uint8, 20, "the model")


def test_an_old_opset_is_given_or_refused_never_replaced() -> None:
    module = Deployable(nn.Identity(), nn.Linear(3, 2)).eval()
    try:
        got = graphs.opset(export(module, (3,), torch.float32, 13, "the model"))
    except BadParams as error:
        said = error.sentence
        got = 13 if "opset 13 was asked for" in said else 0
    assert got == 13


def test_weights_too_large_for_one_file_lie_beside_it_and_are_counted(
    shared: tuple[Deployable, onnx.ModelProto], tmp_path: Path
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(shared[1])
    one, two = tmp_path / "one" / "m.onnx", tmp_path / "two" / "m.onnx"
    graphs.save(model, one)
    graphs.save(model, two, single_file_bytes=100)
    assert [file.name for file in graphs.files_of(two)] == ["m.onnx", "m.onnx.data"]
    assert graphs.size_bytes(two) > two.stat().st_size
    raw = np.zeros((2, *SHAPE), np.uint8)
    first, second = (sessions.run(sessions.session(path, 1), raw) for path in (one, two))
    np.testing.assert_array_equal(first, second)


def test_a_plain_error_of_the_user_s_forward_is_explained() -> None:
    try:
        raise ValueError("seven is too many\nand more")
    except ValueError as error:
        said = export_errors.explain(error)
    assert said.startswith("seven is too many (line ")
    assert "test_export.py: raise ValueError" in said
