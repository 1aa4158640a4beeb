"""Bad input through `shipway run` as a user meets it: one clear line, the documented code, no traceback."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Workspace

pytestmark = pytest.mark.integration

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
LABELS = np.arange(60) % 3


def npz(root: Path, **arrays: np.ndarray) -> str:
    np.savez(root / "raw.npz", **arrays)
    return "data={source: npz, path: raw.npz}"


def folder(root: Path, spoil: Callable[[Path], object], **data: object) -> str:
    for row, image in enumerate(IMAGES):
        path = root / "raw" / f"class{LABELS[row]}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    spoil(root / "raw")
    return "data={source: image_folder, path: raw}"


def idx(root: Path) -> str:
    (root / "raw").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (root / "raw" / f"{name}-ubyte").write_bytes(b"\0\0\x08\x03\0\0\0\x09\0\0\0\x08\0\0\0\x08abc")
    return "data={source: fashion_mnist, path: raw}"


def write_module(root: Path, text: str) -> None:
    (root / "stages" / "data" / "mine.py").write_text(text)


def factory(root: Path, body: str) -> str:
    write_module(root, f"def make():\n    {body}\n")
    return "data={source: 'stages.data.mine:make', path: stages/data/mine.py}"


DATA = {
    "missing folder": (lambda root: "data={source: image_folder, path: nowhere}", 65, "nowhere"),
    "truncated IDX": (idx, 65, "ubyte"),
    "PNG that is no image": (
        lambda root: folder(root, lambda raw: (raw / "class0" / "x.png").write_bytes(b"no image")),
        65,
        "x.png",
    ),
    "images of different size": (
        lambda root: folder(root, lambda raw: Image.new("L", (9, 9)).save(raw / "class0" / "x.png")),
        65,
        "resize",
    ),
    "one class only": (lambda root: npz(root, images=IMAGES, labels=LABELS * 0), 65, "class"),
    "class with one sample": (
        lambda root: npz(root, images=IMAGES, labels=np.where(np.arange(60) == 0, 3, LABELS)),
        65,
        "class",
    ),
    "NaN": (
        lambda root: npz(root, x=np.where(IMAGES[:1] == 0, np.nan, IMAGES.astype(np.float32)) * np.nan, y=LABELS),
        65,
        "NaN",
    ),
    "npz without labels": (lambda root: npz(root, images=IMAGES), 65, "labels"),
    "labels out of range": (lambda root: npz(root, images=IMAGES, labels=LABELS - 1), 65, "label"),
    "factory that cannot be imported": (lambda root: "data={source: 'no.such:make', path: params.yaml}", 64, "no.such"),
    "factory that raises": (lambda root: factory(root, "raise RuntimeError('sorry')"), 64, "sorry"),
    "factory that returns something else": (lambda root: factory(root, "return 7"), 64, "int"),
}
MODELS = {
    "unknown name": ("model={name: resnet_cifra, kwargs: {}}", "did you mean 'resnet_cifar'"),
    "cannot be imported": ("model={name: 'no.such:net', kwargs: {}}", "no.such"),
    "returns something else": ("model={name: 'builtins:dict', kwargs: {}}", "torch.nn.Module"),
    "wrong argument": ("model={name: mlp, kwargs: {hiden: [3]}}", "did you mean 'hidden'"),
}


def refused(workspace: Workspace, change: str, stage: str) -> tuple[int, str]:
    done = workspace.shipway("run", stage, "--set", change, check=False)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    return done.returncode, said


@pytest.mark.parametrize("kind", DATA)
def test_bad_data(workspace: Workspace, kind: str) -> None:
    prepare, code, words = DATA[kind]
    found, said = refused(workspace, prepare(workspace.root), "prepare_data")
    assert (found, words in said) == (code, True), said
    assert not (workspace.root / "artifacts/prepare_data/data").exists()


@pytest.mark.parametrize("kind", MODELS)
def test_bad_models(workspace: Workspace, kind: str) -> None:
    change, words = MODELS[kind]
    found, said = refused(workspace, change, "find_batch_size")
    assert (found, words in said) == (64, True), said


def test_wrong_models_are_all_named_before_anything_runs_and_params_are_put_back(workspace: Workspace) -> None:
    before = workspace.read("params.yaml")
    changes = ["--set", "model.name=resnet_cifra", "--set", "distill.student.kwargs.deepth=8"]
    done = workspace.shipway("run", *changes, check=False)
    assert done.returncode == 64, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert "params.yaml: model: model 'resnet_cifra' is unknown; did you mean 'resnet_cifar'?" in lines[0]
    assert "params.yaml: distill.student: model 'resnet_cifar' takes no argument 'deepth'" in lines[1]
    assert len(lines) == 2
    assert workspace.read("params.yaml") == before
    assert not any((workspace.root / "artifacts").iterdir())


def test_the_student_of_a_switched_off_distillation_is_not_looked_at(workspace: Workspace) -> None:
    document = workspace.read("params.yaml").decode()
    off = document.replace("distill:\n  enabled: true", "distill:\n  enabled: false")
    (workspace.root / "params.yaml").write_text(off.replace("kwargs: {depth: 8, width: 48}", "kwargs: {deepth: 8}"))
    assert off != document
    assert workspace.python("-m", "stages.models").returncode == 0


def test_data_that_changes_between_two_stages(workspace: Workspace) -> None:
    change = folder(workspace.root, lambda raw: None)
    workspace.shipway("run", "prepare_data", "--set", change)
    for path in (workspace.root / "raw" / "class0").iterdir():
        path.write_bytes(path.read_bytes() + b"changed")
    done = workspace.python("-m", "stages.benchmark_data", check=False)
    assert done.returncode == 65
    assert "data changed between stages" in done.stdout


def test_a_full_disk_is_74_and_leaves_nothing_half_written(workspace: Workspace) -> None:
    limited = ["sh", "-c", 'ulimit -f 64; exec "$0" -m stages.prepare_data', sys.executable]
    done = subprocess.run(limited, cwd=workspace.root, env=workspace.env, capture_output=True, text=True, check=False)
    assert done.returncode == 74, done.stdout + done.stderr
    assert "free space" in done.stdout
    assert not (workspace.root / "artifacts/prepare_data").exists()
    assert not list((workspace.root / "artifacts").glob(".*"))


def test_data_of_the_wrong_kind_is_said_before_dvc_removes_anything(workspace: Workspace) -> None:
    workspace.shipway("run", "prepare_data")
    before, kept = workspace.read("params.yaml"), workspace.read("artifacts/prepare_data/data/info.json")
    change = "data={source: image_folder, path: stages/data/digits.npz}"
    found, said = refused(workspace, change, "prepare_data")
    assert (found, "is no folder; source 'image_folder' requires one" in said) == (65, True), said
    assert workspace.read("params.yaml") == before
    assert workspace.read("artifacts/prepare_data/data/info.json") == kept


def test_a_read_only_disk_is_74(workspace: Workspace) -> None:
    mounts = 'mount --bind . "$PWD" && cd "$PWD" && mount -o remount,bind,ro "$PWD"'
    script = f'{mounts} && ! touch x && exec "$0" -m flows.cli run || exit 99'
    tried = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable],
        cwd=workspace.root,
        env=workspace.env,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode == 99:
        pytest.skip(f"nothing can be mounted here: {tried.stderr}")
    assert tried.returncode == 74, tried.stdout + tried.stderr
    assert "Read-only file system" in tried.stderr
    assert "Traceback" not in tried.stderr
