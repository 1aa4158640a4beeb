"""Every field of every schema has a description, for the error messages, the docs and the form."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from stages.config.base import StageParams, identifying, key
from stages.config.data import kind_fault
from stages.config.fit import Fit
from stages.config.pipeline import Pipeline
from stages.config.train import Train


def undocumented(schema: type[BaseModel], path: str) -> list[str]:
    found = []
    for name, field in schema.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            assert annotation.__doc__
            found += undocumented(annotation, f"{path}.{name}")
        elif not field.description:
            found.append(f"{path}.{name}")
    return found


def test_every_field_is_described() -> None:
    assert undocumented(Pipeline, "params") == []


def test_declared_lists_sections_and_keys_below_them() -> None:
    class Params(StageParams):
        train: Train
        batch: int = key("distill.fit.batch_size")

    assert Params.declared() == ["distill.fit.batch_size", "seed", "threads", "train"]


def test_identifying_leaves_out_what_only_accompanies_a_run() -> None:
    kept = identifying(Fit(log_every_steps=7))
    assert "log_every_steps" not in kept
    assert kept["lr"] == Fit().lr
    assert identifying(Fit()) == kept


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"early_stopping": {"patience": 4}}, "early_stopping.patience must be below epochs - 1"),
        ({"recovery": {"amplitude": {"epochs": 5}}}, "recovery.amplitude.epochs must be below epochs"),
        ({"schedule": "reduce_on_plateau", "plateau": {"patience": 4}}, "plateau.patience must be below epochs - 1"),
    ],
)
def test_a_rule_that_could_never_act_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Fit(epochs=5, **settings)
    Fit(epochs=6, **settings)


@pytest.mark.parametrize("source", ["digits", "npz", "fashion_mnist", "image_folder"])
def test_a_source_says_what_kind_of_thing_it_reads(source: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    wrong, right = (file, tmp_path) if source in ("fashion_mnist", "image_folder") else (tmp_path, file)
    assert "requires one" in (kind_fault(source, str(wrong)) or "")
    assert kind_fault(source, str(right)) is None
    assert kind_fault(source, str(tmp_path / "missing")) is None  # DVC says so before it removes anything.
    assert kind_fault("some.module:factory", str(wrong)) is None
