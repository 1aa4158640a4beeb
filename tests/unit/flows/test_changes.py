"""Overrides of a served run as dotted keys, and what an edit of params.yaml makes of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stages.config.editing import changes_in, edit
from stages.config.loading import ParamsError, load, read_yaml

SHIPPED = Path(__file__).parents[3] / "params.yaml"

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"seed": 3}, {"seed": 3}),
    ({"train": {"lr": 0.01, "epochs": 2}}, {"train.lr": 0.01, "train.epochs": 2}),
    ({"train": None}, {}),
    ({"train": {}}, {}),
    ({"train": {"recovery": None, "lr": 1}}, {"train.lr": 1}),
    ({"train": {"recovery": {"max_rollbacks": 0}}}, {"train.recovery.max_rollbacks": 0}),
    ({"train": {"recovery": {"amplitude": {"epochs": 6}}}}, {"train.recovery.amplitude": {"epochs": 6}}),
    ({"train": {"recovery": {"amplitude": None}}}, {"train.recovery.amplitude": None}),
    ({"train": {"clip_norm": None}}, {"train.clip_norm": None}),
    ({"train": {"lr": None}}, {"train.lr": None}),
    ({"train": {"ema": {"decay": 0.9}}}, {"train.ema": {"decay": 0.9}}),
    ({"train": {"groups": [{"pattern": "a"}]}}, {"train.groups": [{"pattern": "a"}]}),
    ({"model": {"kwargs": {"depth": 8}}}, {"model.kwargs": {"depth": 8}}),
    ({"model": {"kwargs": {}}}, {"model.kwargs": {}}),
    ({"distill": {"student": {"kwargs": {"depth": 8}}}}, {"distill.student.kwargs": {"depth": 8}}),
    ({"prune": {"fit": {"recovery": {"max_rollbacks": 1}}}}, {"prune.fit.recovery.max_rollbacks": 1}),
    ({"trian": {"lr": 1}}, {"trian": {"lr": 1}}),
    ({"trian": {}}, {"trian": {}}),
    ({"train": {"lrr": {"a": 1}}}, {"train.lrr": {"a": 1}}),
    ({"train": 5}, {"train": 5}),
    ({"seed": {"a": 1}}, {"seed": {"a": 1}}),
]


@pytest.fixture
def params(tmp_path: Path) -> Path:
    return Path(shutil.copy(SHIPPED, tmp_path / "params.yaml"))


@pytest.mark.parametrize(("overrides", "dotted"), CASES, ids=[json.dumps(case[0]) for case in CASES])
def test_sections_become_dotted_keys_and_values_stay_whole(overrides: dict[str, Any], dotted: dict[str, Any]) -> None:
    before = json.dumps(overrides)
    assert changes_in(overrides) == dotted
    assert json.dumps(overrides) == before


def test_the_file_itself_changes_nothing(params: Path) -> None:
    text = params.read_text()
    assert edit(changes_in(read_yaml(params)), params) == {}
    assert edit(changes_in(load(params)), params) == {}
    assert params.read_text() == text


def test_only_what_is_overridden_changes(params: Path) -> None:
    before = load(params)
    overrides = {
        "seed": 7,
        "train": {"lr": 0.5, "recovery": {"max_rollbacks": 0}, "ema": {"decay": 0.5}},
        "distill": {"student": {"kwargs": {"depth": 2}}, "fit": None},
        "promote": {"automatic": True},
        "prune": None,
    }
    changed = edit(changes_in(overrides), params)
    assert {name: new for name, (_, new) in changed.items()} == {
        "seed": 7,
        "train.lr": 0.5,
        "train.recovery.max_rollbacks": 0,
        "train.ema": {"decay": 0.5, "start_step": 0},
        "distill.student.kwargs": {"depth": 2},
        "promote.automatic": True,
    }
    before["seed"] = 7
    before["train"] |= {"lr": 0.5, "ema": {"decay": 0.5, "start_step": 0}}
    before["train"]["recovery"]["max_rollbacks"] = 0
    before["distill"]["student"]["kwargs"] = {"depth": 2}
    before["promote"]["automatic"] = True
    assert load(params) == before
    assert "# Every setting of the pipeline" in params.read_text()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"trian": {}}, "trian: unknown key; did you mean 'train'?"),
        ({"train": {"lrr": 1}}, "train.lrr: unknown key"),
        ({"train": {"lr": -1}}, "train.lr: input should be greater than 0; got -1"),
        ({"train": {"lr": None}}, "train.lr: input should be a valid number; got None"),
        ({"train": {"groups": [{"pattern": "("}]}}, "must be a regular expression: missing )"),
        ({"find_batch_size": {"fixed_micro_batch": 48}}, "fixed_micro_batch must divide train.batch_size; 48 does not"),
        ({"train": {"recovery": {"max_rollback": 1}}}, "did you mean 'max_rollbacks'"),
        ({"train": {"ema": {"decay": 1.5}}}, "train.ema"),
        ({"train": 5}, "train: "),
        ({"train": {"recovery": 5}}, "train.recovery: "),
        ({"seed": {"a": 1}}, "seed: "),
        ({"nightly": {"cron": "never"}}, "nightly.cron: must have 5 fields"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_and_not_written(params: Path, overrides: dict[str, Any], said: str) -> None:
    text = params.read_text()
    with pytest.raises(ParamsError) as caught:
        edit(changes_in(overrides), params)
    assert said in str(caught.value)
    assert params.read_text() == text
