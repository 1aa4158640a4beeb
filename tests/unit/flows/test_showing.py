"""Names of a stage's artifacts, as Prefect takes them."""

import re
from pathlib import Path

import pytest
from prefect.client.schemas.actions import ArtifactCreate

from flows.form import stage_names
from flows.showing import key

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("stage", "wanted"),
    [
        ("train", "train"),
        ("diagnose@train", "diagnose-train"),
        ("prepare_data", "prepare-data"),
        ("Export__ONNX@@8", "export-onnx-8"),
        ("_a.b_", "a-b"),
        ("größe@ü1", "gr-e-1"),
        ("a--b", "a-b"),
    ],
)
def test_a_stages_name_as_a_key(stage: str, wanted: str) -> None:
    assert key(stage) == wanted
    assert key(wanted) == wanted


def test_prefect_takes_the_keys_of_all_stages_and_they_differ() -> None:
    names = stage_names(ROOT / "dvc.yaml")
    keys = [f"{key(name)}-progress" for name in names]
    assert [ArtifactCreate(key=one).key for one in keys] == keys
    assert len(set(keys)) == len(names) > 10
    assert all(re.fullmatch("[a-z0-9-]+", one) for one in keys)
