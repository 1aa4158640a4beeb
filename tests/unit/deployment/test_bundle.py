"""Stage `bundle`, `verify` and the bundle's predict.py: whole ones work, damaged ones are refused with one line."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

from stages.bundle import Inputs, Outputs, Params, run
from stages.config.bundle import Bundle
from stages.data.prepared import Prepared
from stages.deployment import evaluation
from stages.deployment import predict as predict_py
from stages.deployment.__main__ import main as deployment
from stages.deployment.card import model_card
from stages.runtime.exits import BadData, GateFailed
from stages.runtime.files import canonical_json, sha256_bytes, write_json
from tests.unit.data.build import deep_rgb_png
from tests.unit.deployment.build import conv_net, dense_net, embed

FINAL = {"accuracy": 0.9, "macro_f1": 0.9, "size_bytes": 4000, "params": 50, "macs": 900, "number_type": "float"}
TARGETS = {
    "all_hold": True,
    "targets": [{"name": "min_accuracy", "bound": 0.5, "holds": True, "got": 0.9}],
    "final": FINAL,
    "baseline": {**FINAL, "name": "teacher"},
}
IDENTITY = {
    "schema": 1, "stage": "bundle", "params": {"seed": 0}, "code": "c", "data": "d", "parents": {},
    "versions": {"onnxruntime": "1.2.3"}, "ancestors": {},
}  # fmt: skip


def make_inputs(data: Path, model: Any, folder: Path, targets: dict[str, Any] = TARGETS) -> Inputs:
    embed(model, folder / "quantized" / "model.onnx")
    write_json(folder / "quantized" / "decision.json", {"chosen": "float", "reason": "a test"})
    write_json(folder / "targets" / "targets.json", targets)
    verdicts = [folder / name for name in ("train", "distill", "prune")]
    for verdict in verdicts:
        write_json(verdict / "verdict.json", {"verdict": "healthy", "passed": True, "findings": []})
    return Inputs(data, folder / "quantized", folder / "targets", *verdicts)


def make_bundle(inputs: Inputs, out: Path) -> Path:
    write_json(out / "identity.json", IDENTITY)
    run(Params(seed=0, threads=1, bundle=Bundle(stored_predictions=5)), inputs, Outputs(out))
    return out


@pytest.fixture(scope="module")
def made(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    return make_bundle(make_inputs(images, conv_net(Prepared.open(images), (4, 8)), folder), folder / "made")


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "a bundle"))


def predict(bundle: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-B", str(bundle / "predict.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 65, done
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def verify(bundle: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = deployment(["verify", str(bundle)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_bundle_holds_what_it_promises(made: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.name for path in made.iterdir()}
    assert names == {
        "model.onnx", "labels.json", "predict.py", "manifest.json", "predictions.json", "samples.npy", "README.md",
        "identity.json",
    }  # fmt: skip
    manifest = json.loads((made / "manifest.json").read_text())
    assert set(manifest["files"]) == names - {"manifest.json"}
    assert manifest["checksum"] == sha256_bytes(
        canonical_json({key: value for key, value in manifest.items() if key != "checksum"}).encode()
    )
    assert manifest["input"] == {"name": "input", "dtype": "uint8", "shape": [None, 16, 16, 1]}
    assert (made / "model.onnx").read_bytes() == (made.parent / "quantized/model.onnx").read_bytes()
    assert json.loads((made / "labels.json").read_text()) == ["a", "b", "c", "d"]
    assert len(json.loads((made / "predictions.json").read_text())["predictions"]) == 5
    code, out, _ = verify(made, capsys)
    assert code == 0
    assert "7 checksums and 5 stored predictions agree" in out
    assert Prepared.open(images).info.hash in (made / "README.md").read_text()


def test_the_same_inputs_give_the_same_bytes(images: Path, tmp_path: Path) -> None:
    inputs = make_inputs(images, conv_net(Prepared.open(images), (4, 8)), tmp_path)
    one, two = make_bundle(inputs, tmp_path / "one"), make_bundle(inputs, tmp_path / "two")
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name
        assert str(tmp_path).encode() not in path.read_bytes()


def test_missed_targets_or_a_model_from_elsewhere_make_no_bundle(images: Path, tmp_path: Path) -> None:
    model = conv_net(Prepared.open(images), (4, 8))
    missed = {**TARGETS, "all_hold": False, "targets": [{"name": "min_accuracy", "bound": 1.0, "holds": False}]}
    with pytest.raises(GateFailed, match="min_accuracy"):
        make_bundle(make_inputs(images, model, tmp_path / "missed", missed), tmp_path / "one")
    inputs = make_inputs(images, model, tmp_path / "elsewhere")
    (inputs.model / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BadData, match="carries no identity"):
        make_bundle(inputs, tmp_path / "two")


def test_predict_reads_images_folders_and_arrays_alike(bundle: Path, images: Path, tmp_path: Path) -> None:
    prepared = Prepared.open(images)
    indices = prepared.indices("test")[:6]
    samples = prepared.read(indices)
    scores = evaluation.score(bundle / "model.onnx", prepared, "test", 1)
    wanted = [prepared.info.classes[number] for number in scores.predicted[:6]]
    folder = tmp_path / "some images"
    (folder / "below").mkdir(parents=True)
    for number, pixels in enumerate(samples):
        place = folder / ("below" if number > 2 else "") / f"{number}.png"
        Image.fromarray(pixels[:, :, 0]).convert("RGB" if number % 2 else "L").save(place)
    np.savez(tmp_path / "s.npz", images=samples, labels=np.arange(6))
    np.save(tmp_path / "s.npy", samples[0])
    done = predict(bundle, "--json", tmp_path / "s.npz", tmp_path / "s.npy", folder)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["label"] for row in rows[:7]] == [*wanted, wanted[0]]
    by_name = {Path(row["source"]).stem: row["label"] for row in rows[7:]}
    assert [by_name[str(number)] for number in range(6)] == wanted
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-4)
    plain = predict(bundle, folder / "0.png").stdout
    assert plain == f"{folder / '0.png'}\t{wanted[0]}\t{rows[7]['probability']:.4f}\n"


def test_check_agrees_and_a_command_line_without_files_is_64(bundle: Path) -> None:
    done = predict(bundle, "--check")
    assert (done.returncode, done.stdout) == (0, "whole: 7 files, 5 stored predictions agree\n")
    assert predict(bundle).returncode == 64
    assert predict(bundle, "--nonsense").returncode == 64


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("shape.npy", np.zeros((3, 8, 8, 1), np.uint8), ["must be uint8 (n, 16, 16, 1)", "(3, 8, 8, 1)"]),
        ("none.npy", np.zeros((0, 16, 16, 1), np.uint8), ["holds no sample", "(0, 16, 16, 1)"]),
        ("dtype.npy", np.zeros((3, 16, 16, 1), np.float64), ["must be uint8", "float64"]),
        ("objects.npy", np.array([{"a": 1}], object), ["no readable .npy"]),
        ("text.npy", b"hello", ["no readable .npy"]),
        ("text.npz", b"PK\x03\x04 hello", ["no readable"]),
        ("text.png", b"hello", ["no readable PNG or JPEG"]),
        ("table.csv", b"1,2", ["must be a folder, or end in"]),
    ],
)
def test_samples_that_do_not_fit_are_refused(
    bundle: Path, tmp_path: Path, name: str, content: Any, words: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    refused(predict(bundle, path), name, *words)


def test_images_that_do_not_fit_are_refused(bundle: Path, tmp_path: Path) -> None:
    Image.new("L", (20, 16)).save(tmp_path / "wide.png")
    refused(predict(bundle, tmp_path / "wide.png"), "must be 16 x 16 pixels, it is 20 x 16")
    Image.new("I;16", (16, 16)).save(tmp_path / "deep.png")
    refused(predict(bundle, tmp_path / "deep.png"), "more than 8 bits")
    (tmp_path / "deep.png").write_bytes(deep_rgb_png(16, 16))
    refused(predict(bundle, tmp_path / "deep.png"), "more than 8 bits a channel")
    Image.effect_noise((16, 16), 90).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:120])
    refused(predict(bundle, tmp_path / "cut.png"), "no readable PNG or JPEG")
    (tmp_path / "empty").mkdir()
    refused(predict(bundle, tmp_path / "empty"), "holds no PNG or JPEG")
    refused(predict(bundle, tmp_path / "none.png"), "does not exist")


def test_a_reader_that_leaves_ends_it_quietly(bundle: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.zeros((3000, 16, 16, 1), np.uint8))
    command = [sys.executable, "-I", "-B", str(bundle / "predict.py"), str(tmp_path / "s.npy")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_class_name_that_stdout_cannot_encode_is_escaped(bundle: Path) -> None:
    labels = ["caf\u00e9", "\u6f22", "\U0001f600", "\u00fc"]
    write_json(bundle / "labels.json", labels)
    content = (bundle / "labels.json").read_bytes()
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files["labels.json"] = {"sha256": sha256_bytes(content), "bytes": len(content)}
    edit(bundle, files=files)
    command = [sys.executable, "-B", str(bundle / "predict.py"), str(bundle / "samples.npy")]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    plain, as_json = (
        subprocess.run([*command, *more], capture_output=True, text=True, check=True, env=ascii_only).stdout
        for more in ([], ["--json"])
    )
    names = [line.split("\t")[1] for line in plain.splitlines()]
    found = [row["label"] for row in json.loads(as_json)]
    assert names == [name.encode("ascii", "backslashreplace").decode() for name in found]
    assert set(found) <= set(labels)


def test_rows_have_no_image_files_and_no_nan(rows: Callable[..., Prepared], tmp_path: Path) -> None:
    prepared = rows()
    bundle = make_bundle(make_inputs(prepared.folder, dense_net(prepared), tmp_path), tmp_path / "out")
    samples = prepared.read(prepared.indices("test")[:3])
    np.save(tmp_path / "s.npy", samples)
    assert len(predict(bundle, tmp_path / "s.npy").stdout.splitlines()) == 3
    samples[1, 2] = np.nan
    np.save(tmp_path / "s.npy", samples)
    refused(predict(bundle, tmp_path / "s.npy"), "NaN or infinity")
    Image.new("L", (16, 16)).save(tmp_path / "i.png")
    refused(predict(bundle, tmp_path / "i.png"), "no image files")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def edit(bundle: Path, **changes: Any) -> None:
    """As one who makes the manifest's own checksum right again; `checksum` itself may be among the changes."""
    path = bundle / "manifest.json"
    manifest = {**json.loads(path.read_text()), **changes}
    write_json(path, {**manifest, "checksum": predict_py.manifest_checksum(manifest), **changes})


def alter(bundle: Path, old: str, new: str) -> None:
    path = bundle / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def rename_in_manifest(bundle: Path, name: str) -> None:
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files[name] = files["README.md"]
    edit(bundle, files=files)


def link(bundle: Path) -> None:
    shutil.move(bundle / "README.md", bundle.parent / "README.md")
    (bundle / "README.md").symlink_to(bundle.parent / "README.md")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit in the model": (lambda b: flip(b / "model.onnx"), "model.onnx is damaged"),
    "a flipped bit in the labels": (lambda b: flip(b / "labels.json"), "labels.json is damaged"),
    "a shortened file": (lambda b: (b / "samples.npy").write_bytes(b"1"), "samples.npy is damaged"),
    "a missing model": (lambda b: (b / "model.onnx").unlink(), "model.onnx is missing"),
    "a missing manifest": (lambda b: (b / "manifest.json").unlink(), "manifest.json is missing"),
    "a manifest that is no JSON": (lambda b: (b / "manifest.json").write_text("{"), "manifest.json is damaged"),
    "a manifest of another form": (lambda b: (b / "manifest.json").write_text("[]"), "manifest.json is damaged"),
    "a manifest without files": (lambda b: edit(b, files={}), "manifest.json is damaged"),
    "a path that leaves the bundle": (lambda b: rename_in_manifest(b, "../secret"), "lies outside the bundle"),
    "an absolute path": (lambda b: rename_in_manifest(b, "/etc/passwd"), "lies outside the bundle"),
    "a link out of the bundle": (link, ""),
    "a changed setting": (lambda b: alter(b, '"scale": 255.0', '"scale": 254.0'), "its own checksum"),
    "a changed identity": (lambda b: alter(b, '"identity": "', '"identity": "0'), "its own checksum"),
    "a manifest without its own checksum": (lambda b: alter(b, '"checksum"', '"checksun"'), "its own checksum"),
    "another checksum": (lambda b: edit(b, checksum="0" * 64), "its own checksum"),
    "a manifest without an output": (lambda b: edit(b, output={}), "manifest.json is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bundles_are_refused_by_predict_and_verify(
    bundle: Path, images: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    break_it, words = DAMAGES[damage]
    break_it(bundle)
    refused(predict(bundle, images / "samples.npy"), words)
    code, out, err = verify(bundle, capsys)
    assert (code, out) == (65, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_verify_refuses_files_that_the_manifest_does_not_name(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "folder").mkdir()
    (bundle / "folder" / "more.py").write_text("print()")
    code, _, err = verify(bundle, capsys)
    assert code == 65
    assert "more.py is not in the manifest" in err


def test_verify_does_not_run_the_bundle_s_own_code(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checksums made right again: the code is another, and would leave a trace."""
    trace = bundle.parent / "trace"
    evil = f"open({str(trace)!r}, 'w')"
    (bundle / "predict.py").write_text(evil)
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files["predict.py"] = {"sha256": sha256_bytes(evil.encode()), "bytes": len(evil)}
    edit(bundle, files=files)
    assert verify(bundle, capsys)[0] == 0
    assert not trace.exists()


def test_a_stored_prediction_that_differs_is_found(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / "predictions.json"
    stored = json.loads(path.read_text())
    stored["predictions"][2]["label"] = "none"
    write_json(path, stored)
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files["predictions.json"] = {"sha256": sha256_bytes(path.read_bytes()), "bytes": path.stat().st_size}
    edit(bundle, files=files)
    code, _, err = verify(bundle, capsys)
    assert code == 65
    assert "stored prediction 2" in err
    refused(predict(bundle, "--check"), "stored prediction 2")


@pytest.mark.parametrize(("slack", "code"), [(1e-3, 0), (-1e-3, 65)])
def test_a_near_tie_may_turn_round_within_the_tolerance(
    bundle: Path, slack: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stored on a processor that found the two largest probabilities equal, and the other one first."""
    path = bundle / "predictions.json"
    stored = json.loads(path.read_text())
    row = stored["predictions"][2]
    labels = json.loads((bundle / "labels.json").read_text())
    second, first = np.argsort(row["probabilities"])[-2:]
    gap = row["probabilities"][first] - row["probabilities"][second]
    middle = row["probabilities"][first] - gap / 2
    row["probabilities"][first], row["probabilities"][second] = middle, middle
    row["label"], stored["tolerance"] = labels[second], gap / 2 + slack
    write_json(path, stored)
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files["predictions.json"] = {"sha256": sha256_bytes(path.read_bytes()), "bytes": path.stat().st_size}
    edit(bundle, files=files)
    assert verify(bundle, capsys)[0] == code
    assert predict(bundle, "--check").returncode == code


@pytest.mark.parametrize("content", ["{}", "[]", '{"tolerance": "x", "predictions": [1]}'])
def test_stored_predictions_of_another_form_are_refused(
    bundle: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a careless person might edit them: with the checksum made right."""
    path = bundle / "predictions.json"
    path.write_text(content)
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    files["predictions.json"] = {"sha256": sha256_bytes(content.encode()), "bytes": len(content)}
    edit(bundle, files=files)
    refused(predict(bundle, "--check"), "predictions.json must hold")
    assert verify(bundle, capsys)[0] == 65


def test_a_wrong_command_line_of_the_part_is_64(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="64"):
        deployment(["verifi"])
    assert "invalid choice" in capsys.readouterr().err


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path / "none", capsys)[0] == 65
    assert verify(tmp_path, capsys)[0] == 65


HOSTILE = (
    "![x](http://evil/p.png)", "<script>alert(1)</script>", "a|b", "`code`", "[x](javascript:y)", "# head",
    "*b* _i_ ~~s~~", "&lt;", "\\", "http://evil.org www.evil.org a@evil.org", "two\nlines", "\u202eright\x00",
)  # fmt: skip


def test_the_card_shows_hostile_names_as_text_and_nothing_else(images: Path) -> None:
    """Read by a Markdown parser, with tables and strike-through on, as a code host has them."""
    info = Prepared.open(images).info
    info = dataclasses.replace(info, classes=HOSTILE, counts={name: [1] * len(HOSTILE) for name in info.splits})
    decision = {"chosen": "float", "reason": "; ".join(HOSTILE), "number_types": {"because": HOSTILE[0]}}
    nasty = {"seed": 0, "model": {"name": "````\n![x](http://evil/p.png)\n```"}}
    card = model_card(info, decision, TARGETS, {"train": {"verdict": HOSTILE[0], "passed": True}}, {
        **IDENTITY, "params": nasty, "versions": {"onnx": "<b>1</b>"},
    })  # fmt: skip
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    tokens = [one for token in parser.parse(card) for one in (token, *(token.children or []))]
    kinds = {token.type for token in tokens}
    assert not kinds & {"image", "link_open", "html_inline", "html_block", "em_open", "strong_open", "s_open"}
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1"] + ["h2"] * 5
    fences = [json.loads(token.content) for token in tokens if token.type == "fence" and token.info == "json"]
    assert fences == [{"bundle": nasty}]
    cells = ["".join(c.content for c in t.children or []) for t in tokens if t.type == "inline"]
    printable = [*HOSTILE[:10], "two lines", "\ufffdright\ufffd"]
    for name in printable:
        assert cells.count(name) >= 1, name
    assert not re.search(r"https?://|www\.", card.split("## Data")[1].split("## Origin")[0])


def test_numbers_are_taken_as_the_sources_take_them() -> None:
    class Rows:
        shape, dtype = (3,), np.dtype(np.float32)

    for kind in (np.float64, np.float16, np.int64, np.uint8):
        taken = predict_py.check_samples(Rows(), np.ones((2, 3), kind), "x")  # type: ignore[arg-type]
        assert taken.dtype == np.float32
    with pytest.raises(predict_py.RefusedError, match="NaN or infinity"):
        predict_py.check_samples(Rows(), np.full((2, 3), 1e300), "x")  # type: ignore[arg-type]
