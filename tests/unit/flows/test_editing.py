"""Edits of params.yaml: validated first, everything else left as it stood."""

import re
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.config.editing import changes_to, edit, parse_assignments
from stages.config.loading import READ_BY_DVC, ParamsError, load, read_yaml

SHIPPED = Path(__file__).parents[3] / "params.yaml"


KNOWN = {
    "train.epochs": 15,
    "train.batch_size": 64,
    "train.lr": 0.003,
    "model.kwargs": {"depth": 14, "width": 32},
    "targets.min_accuracy": 0.95,
    "diagnose.fail_on": ["nan", "diverged"],
    "seed": 0,
}


@pytest.fixture
def params(tmp_path: Path) -> Path:
    """The shipped file with values of its own, whatever the shipped ones are."""
    path = Path(shutil.copy(SHIPPED, tmp_path / "params.yaml"))
    edit(KNOWN, path)
    return path


def test_assignments_are_yaml() -> None:
    parsed = parse_assignments(["a.b=1e-3", "c=[x, y]", "d=", "e=true", "f=k=v"])
    assert parsed == {"a.b": 0.001, "c": ["x", "y"], "d": None, "e": True, "f": "k=v"}
    with pytest.raises(ParamsError) as caught:
        parse_assignments(["novalue", "a=[1"])
    assert len(caught.value.problems) == 2


def test_only_the_edited_lines_change(params: Path) -> None:
    before = params.read_text()
    changed = edit({"train.lr": 0.01, "model.kwargs.depth": 20, "diagnose.fail_on": ["nan"]}, params)
    assert changed["train.lr"] == (0.003, 0.01)
    pairs = [
        (old, new) for old, new in zip(before.splitlines(), params.read_text().splitlines(), strict=True) if old != new
    ]
    assert [new for _, new in pairs] == ["  kwargs: {depth: 20, width: 32}", "  lr: 0.01", "  fail_on: [nan]"]


def test_what_is_already_so_does_not_touch_the_file(params: Path) -> None:
    params.write_text(params.read_text() + "\n\n# the end\n")
    before = params.stat().st_mtime_ns
    assert edit({"train.epochs": 15, "train.label_smoothing": 0.0}, params) == {}
    assert params.stat().st_mtime_ns == before


def test_a_new_key_stands_at_the_end_of_its_section(params: Path) -> None:
    edit({"targets.max_size_kib": 300, "prune.on_miss": "keep_best"}, params)
    text = params.read_text()
    assert "  min_accuracy: 0.95\n  max_size_kib: 300\n\nresume:" in text
    assert "    clip_norm: 5.0\n  on_miss: keep_best\n\nexport_onnx:" in text


def test_quotes_nulls_and_indented_lists_stay(params: Path) -> None:
    text = params.read_text().replace("{source: digits,", '{source: "digits",')
    text = text.replace("fail_on: [nan,", "fail_on:\n    - nan # a remark\n  # [", 1)
    params.write_text(text)
    edit({"seed": 1}, params)
    assert params.read_text() == text.replace("seed: 0", "seed: 1")


def test_an_invalid_result_is_not_written(params: Path) -> None:
    before = params.read_text()
    for changes in ({"train.lrr": 1}, {"train.lr": -1}, {"seed.x": 1}, {"train": None}):
        with pytest.raises(ParamsError):
            edit(changes, params)
    assert params.read_text() == before
    assert [path.name for path in params.parent.iterdir()] == ["params.yaml"]


def test_an_edit_may_mend_an_invalid_file(params: Path) -> None:
    params.write_text(params.read_text().replace("epochs: 15", "epochs: 0", 1))
    assert edit({"train.epochs": 5}, params) == {"train.epochs": (0, 5)}


def test_changes_to_former_sections_name_only_what_differs(params: Path) -> None:
    before = params.read_text()
    former = {name: load(params)[name] for name in ("train", "model", "seed")}
    former["train.batch_size"] = former["train"]["batch_size"]
    assert changes_to(former, params) == {}
    edit({"train.lr": 0.5, "train.batch_size": 32, "model.kwargs": {"depth": 8}, "seed": 9}, params)
    changes = changes_to(former, params)
    assert changes == {
        "train.batch_size": 64,
        "train.lr": 0.003,
        "model.kwargs": {"depth": 14, "width": 32},
        "seed": 0,
    }
    edit(changes, params)
    assert params.read_text() == before


@pytest.mark.parametrize(("dotted", "default"), [("train.batch_size", "64"), ("data.path", "stages/data/digits.npz")])
def test_a_key_that_dvc_reads_may_not_be_left_to_its_default(params: Path, dotted: str, default: str) -> None:
    values = read_yaml(params)
    section, name = dotted.split(".")
    del values[section][name]
    with params.open("w") as file:
        YAML(typ="safe").dump(values, file)
    with pytest.raises(ParamsError) as caught:
        load(params)
    (line,) = caught.value.problems
    assert line.endswith(f"{dotted}: required in params.yaml, since dvc.yaml reads it; its default is {default}")


def test_what_dvc_reads_below_a_section_is_what_its_file_names() -> None:
    pipeline = SHIPPED.with_name("dvc.yaml").read_text()
    stages = YAML(typ="safe").load(pipeline)["stages"].values()
    params = {name for stage in stages for name in stage.get("do", stage)["params"]}
    interpolated = set(re.findall(r"\$\{(\w+\.[\w.]+)\}", pipeline))
    assert {name for name in params if "." in name} | interpolated == set(READ_BY_DVC)
