"""params.yaml: every fault at once, each with its path, what is allowed, and what came."""

from pathlib import Path
from typing import Any

import pytest

from stages.config.editing import edit, parse_assignments
from stages.config.loading import ParamsError, load, read_yaml, validate

SHIPPED = Path(__file__).parents[3] / "params.yaml"


def faults(change: dict[str, Any]) -> list[str]:
    """The problems after setting dotted keys in the shipped parameters."""
    values = read_yaml(SHIPPED)
    for dotted, value in change.items():
        node = values
        *parents, last = dotted.split(".")
        for name in parents:
            node = node[name]
        node[last] = value
    with pytest.raises(ParamsError) as caught:
        validate(values)
    return caught.value.problems


def test_shipped_parameters_are_valid() -> None:
    assert load(SHIPPED)["train"]["epochs"] > 0


def test_all_faults_come_at_once() -> None:
    found = faults({"train.lr": -1, "seed": "x", "distill.fit.epochs": 0, "modle": 1})
    assert len(found) == 4


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("train.lr", -1, ["train.lr", "greater than 0", "got -1"]),
        ("train.lr", "0.1", ["train.lr", "valid number", "got '0.1'"]),
        ("train.lr", float("nan"), ["train.lr", "finite"]),
        ("train.epochs", 0, ["train.epochs", "greater than or equal to 1", "got 0"]),
        ("threads", 100_000, ["threads", "less than or equal to 256", "got 100000"]),
        ("train.batch_size", 1_000_001, ["train.batch_size", "less than or equal to 1000000", "got 1000001"]),
        ("train.epochs", 1.5, ["train.epochs", "integer"]),
        ("train.epochs", True, ["train.epochs", "integer", "got True"]),
        ("train.ephocs", 3, ["train.ephocs", "unknown key", "did you mean 'epochs'", "batch_size"]),
        ("distill.student.kwarg", {}, ["distill.student.kwarg", "unknown key", "'kwargs'"]),
        ("quantise", {}, ["quantise", "unknown key", "'quantize'"]),
        ("train.optimizer", "adagrad", ["train.optimizer", "'adamw', 'lion' or 'adam_then_sgd'", "got 'adagrad'"]),
        ("train.momentum", 0.9, ["train", "momentum belongs to optimizer 'sgd' or 'adam_then_sgd'"]),
        ("train.schedule", "constant", ["train", "warmup_share belongs to schedule 'warmup_cosine'"]),
        ("train.cycles", 3, ["train", "cycles belongs to schedule 'cosine_restarts'"]),
        ("train.augment", {}, ["train.augment", "must switch something on"]),
        ("data.source", "mnist", ["data", "must be one of digits", "package.module:factory"]),
        ("data.path", "s3://bucket/x", ["data", "must be a file or folder on this machine"]),
        ("data.path", "a\0b", ["data", "printable text"]),
        ("data.path", ".", ["data", "must neither lie in artifacts/ nor hold it"]),
        ("data.path", "artifacts/prepare_data/data", ["data", "must neither lie in artifacts/"]),
        ("data.resize", [9999, 8], ["data.resize.0", "less than or equal to 4096"]),
        ("data.kwargs", {"a": 1}, ["data", "kwargs go to a factory"]),
        ("data.resize", [8, 8], ["data", "resize and grayscale belong to source 'image_folder'"]),
        ("prepare_data", 5, ["prepare_data", "got 5"]),
        ("prepare_data.val_share", 0.9, ["prepare_data", "leave something for train"]),
        ("train", None, ["train", "got None"]),
    ],
)
def test_a_fault_names_path_rule_and_value(key: str, value: Any, said: list[str]) -> None:
    (line,) = faults({key: value})
    for words in said:
        assert words in line


def test_a_rule_that_watches_what_is_switched_off_is_refused() -> None:
    (line,) = faults({"train.clip_norm": None, "train.recovery": {"clip_after_steps": 10}})
    assert "recovery.clip_after_steps watches clip_norm, which is null" in line


def test_a_missing_section_is_named() -> None:
    values = read_yaml(SHIPPED)
    del values["prune"]
    with pytest.raises(ParamsError, match=r"prune: required, but missing"):
        validate(values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "no valid YAML"),
        ("a: " + "9" * 5000, "no valid YAML"),
        ("[" * 3000, "no valid YAML"),
        ("- 1", "must hold sections"),
        ("", "must hold sections"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamsError, match=said):
        load(path)


def test_a_missing_file_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="run from the root"):
        load(tmp_path / "params.yaml")


def test_edit_keeps_comments_and_changes_only_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(SHIPPED.read_text())
    edit(parse_assignments(["train.lr=1e-2", "quantize.fixed=float", "model.kwargs.depth=8"]), path)
    before, after = SHIPPED.read_text().splitlines(), path.read_text().splitlines()
    assert [line for line in before if line.startswith("#")] == [line for line in after if line.startswith("#")]
    changed = load(path)
    assert changed["train"]["lr"] == 0.01
    assert changed["quantize"]["fixed"] == "float"
    assert changed["model"]["kwargs"] == {"depth": 8, "width": load(SHIPPED)["model"]["kwargs"]["width"]}
    assert len(set(after) - set(before)) == 3


@pytest.mark.parametrize("assignment", ["train.lr", "=3", "train.lr=[1", "train.lr=-1", "train.lrr=1", "seed.x=1"])
def test_a_bad_assignment_writes_nothing(tmp_path: Path, assignment: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(SHIPPED.read_text())
    with pytest.raises(ParamsError):
        edit(parse_assignments([assignment]), path)
    assert path.read_text() == SHIPPED.read_text()
    assert list(tmp_path.iterdir()) == [path]
