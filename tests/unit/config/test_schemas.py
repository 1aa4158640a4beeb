"""Every field of every schema has a description, for the error messages, the docs and the form."""

from pydantic import BaseModel

from stages.config.base import StageParams, identifying, key
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
