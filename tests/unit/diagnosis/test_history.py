"""Reading a history: what the training wrote comes back; broken input is refused with one clear sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stages.diagnosis.history import number, read_history
from stages.runtime.exits import BadData
from tests.unit.diagnosis.build import Run, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "artifacts/train/history", Run(epochs=4, per_epoch=5).history(0))


def test_what_was_written_is_read(folder: Path) -> None:
    expected, found = Run(epochs=4, per_epoch=5).history(0), read_history(folder)
    for table in ("steps", "epochs"):
        for name in getattr(expected, table).__dataclass_fields__:
            assert np.array_equal(getattr(getattr(found, table), name), getattr(getattr(expected, table), name)), name
    assert (found.classes, found.clip_norm, found.optimizer, found.status) == (10, 5.0, "sgd", "finished")
    assert found.stage == "train"


def test_numbers_may_be_words(folder: Path) -> None:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    row = json.loads(lines[3]) | {"loss": "nan", "grad_norm": "inf", "lr": "0.5", "clipped": True}
    lines[3] = json.dumps(row)
    (folder / "steps.jsonl").write_text("\n".join(lines))
    steps = read_history(folder).steps
    assert np.isnan(steps.loss[3])
    assert np.isposinf(steps.grad_norm[3])
    assert (steps.lr[3], steps.clipped[3]) == (0.5, 1.0)
    assert number("-inf") == -np.inf


@pytest.mark.parametrize("stage", ["distill", "prune"])
def test_the_folder_tells_the_stage(tmp_path: Path, stage: str) -> None:
    history = read_history(write(tmp_path / f"artifacts/{stage}/history", Run(epochs=4).history(0)))
    assert history.fit_key == f"{stage}.fit"


def test_the_identity_tells_stage_and_settings(folder: Path) -> None:
    params = {"seed": 0, "distill": {"fit": {"lr": 0.3}}, "train.batch_size": 64}
    (folder / "identity.json").write_text(json.dumps({"stage": "distill", "params": params}))
    history = read_history(folder)
    assert history.stage == "distill"
    assert history.settings["distill.fit.lr"] == 0.3
    assert history.settings["train.batch_size"] == 64


def test_rounds_of_pruning_are_restarts(folder: Path) -> None:
    write(folder, Run(epochs=4, per_epoch=5).history(0), rounds=[{"epoch": 1, "step": 1}, {"epoch": 3, "step": 11}])
    assert read_history(folder).restarts == (1, 11)


def test_a_skipped_stage_may_be_empty(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    folder.mkdir()
    (folder / "meta.json").write_text('{"status": "skipped", "task": "classification", "reason": "switched off"}')
    for name in ("steps.jsonl", "epochs.jsonl"):
        (folder / name).write_text("")
    assert (read_history(folder).status, len(read_history(folder).steps)) == ("skipped", 0)


def spoil_line(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        lines[2] = change(lines[2])
        (folder / name).write_text("\n".join(lines))

    return spoil


def drop(column: str) -> Callable[[str], str]:
    return lambda line: json.dumps({key: value for key, value in json.loads(line).items() if key != column})


def put(column: str, value: object) -> Callable[[str], str]:
    return lambda line: json.dumps(json.loads(line) | {column: value})


def twice(folder: Path) -> None:
    text = (folder / "steps.jsonl").read_text()
    (folder / "steps.jsonl").write_text(text + text)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no meta": (lambda folder: (folder / "meta.json").unlink(), "meta.json is missing"),
    "no steps file": (lambda folder: (folder / "steps.jsonl").unlink(), "steps.jsonl is missing"),
    "empty steps": (lambda folder: (folder / "steps.jsonl").write_text(""), "steps.jsonl is empty"),
    "empty epochs": (lambda folder: (folder / "epochs.jsonl").write_text("\n"), "epochs.jsonl is empty"),
    "meta is a list": (lambda folder: (folder / "meta.json").write_text("[]"), "must hold an object"),
    "meta cut short": (lambda folder: (folder / "meta.json").write_text('{"status'), "is no JSON"),
    "unknown status": (lambda folder: (folder / "meta.json").write_text('{"status": "odd"}'), "status must be one of"),
    "bad classes": (
        lambda folder: (folder / "meta.json").write_text('{"status": "finished", "classes": "ten"}'),
        "classes must be a number above 0 or null; got 'ten'",
    ),
    "missing column": (spoil_line("steps.jsonl", drop("loss")), "steps.jsonl, line 3: column loss is missing; it has"),
    "missing columns": (spoil_line("epochs.jsonl", drop("val_loss")), "epochs.jsonl, line 3: column val_loss"),
    "cut line": (spoil_line("steps.jsonl", lambda line: line[:20]), "line 3: no JSON"),
    "a list for a row": (spoil_line("steps.jsonl", lambda _: "[1, 2]"), "must be an object"),
    "a word for a number": (spoil_line("steps.jsonl", put("loss", "much")), "loss must be a number; got 'much'"),
    "null for a number": (spoil_line("epochs.jsonl", put("val_loss", None)), "val_loss must be a number; got None"),
    "steps out of order": (spoil_line("steps.jsonl", put("step", 1)), "step 1 comes after 2"),
    "half a step": (spoil_line("steps.jsonl", put("step", 2.5)), "step must be a whole number"),
    "two runs in one file": (twice, "holds two runs"),
    "binary": (lambda folder: (folder / "steps.jsonl").write_bytes(b"\xff\xfe\x00"), "no UTF-8"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_input_is_refused_with_one_sentence(folder: Path, kind: str) -> None:
    spoil, said = BROKEN[kind]
    spoil(folder)
    with pytest.raises(BadData) as caught:
        read_history(folder)
    assert said in caught.value.sentence
    assert "\n" not in caught.value.sentence
