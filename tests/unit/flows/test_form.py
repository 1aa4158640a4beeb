"""The form of a served run: every field of params.yaml with its bounds, and what the server takes and refuses."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types as at
import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flows.form import overrides_schema, stage_names
from flows.train_to_deploy import train_to_deploy
from stages.config.loading import ParamsError, load, read_yaml
from stages.config.pipeline import Pipeline

ROOT = Path(__file__).parents[3]
Json = dict[str, Any]

BOUNDS = {at.Ge: ("minimum", "ge"), at.Gt: ("exclusiveMinimum", "gt"), at.Le: ("maximum", "le")}
BOUNDS |= {
    at.Lt: ("exclusiveMaximum", "lt"),
    at.MinLen: ("shortest", "min_length"),
    at.MaxLen: ("longest", "max_length"),
}
KEYWORDS = {"minLength": "shortest", "minItems": "shortest", "maxLength": "longest", "maxItems": "longest"}
KEYWORDS |= {name: name for name, _ in BOUNDS.values() if name not in ("shortest", "longest")}


def models(annotation: Any) -> list[type[BaseModel]]:
    """The schemas that a field's type holds, through lists and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for one in get_args(annotation) for model in models(one)]


def objects(schema: Json) -> list[Json]:
    """The objects that a field of the form holds, through lists and choices."""
    if "properties" in schema:
        return [schema]
    below = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    return [found for one in below for found in objects(one)]


def pairs(schema: Json, model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, Json]]:
    """Every field of a schema beside what the form has for it."""
    (found,) = objects(schema)
    assert list(found["properties"]) == list(model.model_fields), path
    assert found["additionalProperties"] is False, path
    for name, field in model.model_fields.items():
        yield f"{path}{name}", field, found["properties"][name]
        for inner in models(field.annotation):
            yield from pairs(found["properties"][name], inner, f"{path}{name}.")


def limits_of_type(annotation: Any, metadata: list[Any]) -> set[tuple[str, Any]]:
    found = {(name, getattr(one, at)) for one in metadata for kind, (name, at) in BOUNDS.items() if type(one) is kind}
    if get_origin(annotation) is Literal:
        return found | {("enum", get_args(annotation))}
    for one in get_args(annotation):
        inner = getattr(one, "__metadata__", ())
        below = [bound for entry in inner for bound in getattr(entry, "metadata", [entry])]
        found |= limits_of_type(get_args(one)[0] if inner else one, below)
    return found


def limits_of_form(field: Json) -> set[tuple[str, Any]]:
    if "properties" in field:
        return set()
    found = {(KEYWORDS[key], value) for key, value in field.items() if key in KEYWORDS}
    found |= {("enum", tuple(field["enum"]))} if "enum" in field else set()
    found |= {("enum", (field["const"],))} if "const" in field else set()
    for one in [*field.get("anyOf", []), *([field["items"]] if "items" in field else [])]:
        found |= limits_of_form(one)
    return found


def test_every_field_is_there_with_the_bounds_and_choices_of_its_schema() -> None:
    found = list(pairs(overrides_schema(), Pipeline))
    wanted = {path: limits_of_type(field.annotation, field.metadata) for path, field, _ in found}
    assert {path: limits_of_form(shown) for path, _, shown in found} == wanted
    assert wanted["train.lr"] == {("exclusiveMinimum", 0.0)}
    assert wanted["prune.fit.batch_size"] == {("minimum", 1), ("maximum", 1_000_000)}
    assert wanted["promote.metric"] == {("enum", ("accuracy", "macro_f1"))}
    assert wanted["data.resize"] == {("shortest", 2), ("longest", 2), ("minimum", 1), ("maximum", 4096)}
    assert {"distill.student.name", "train.groups.pattern", "train.recovery.amplitude.share"} <= wanted.keys()


def test_every_field_says_what_it_is_and_what_its_default_is() -> None:
    for path, field, shown in pairs(overrides_schema(), Pipeline):
        assert shown["title"] == path.rpartition(".")[2]
        said = " ".join(shown["description"].split())
        assert said, path
        assert said.startswith(" ".join((field.description or "").split())), path
        if "." in path and not models(field.annotation):
            assert ("(default: " in said) is not field.is_required(), path
    descriptions = {path: shown["description"] for path, _, shown in pairs(overrides_schema(), Pipeline)}
    assert descriptions["train.lr"] == "Peak learning rate. (default: 0.003)"
    assert descriptions["train.ema"].endswith("(default: null)")


def test_nothing_is_required_referred_to_or_filled_in() -> None:
    schema = overrides_schema()
    text = json.dumps(schema)
    assert not [word for word in ("$ref", "$defs", "required") if f'"{word}"' in text]
    assert "default" not in schema
    for path, _, shown in pairs(schema, Pipeline):
        if objects(shown) and "." not in path:
            assert shown["default"] is None, path
            assert shown["anyOf"][1] == {"type": "null", "title": "unchanged"}, path
        else:
            assert "default" not in shown, path


def test_each_call_makes_a_schema_of_its_own() -> None:
    first = overrides_schema()
    before = copy.deepcopy(first)
    first["properties"]["train"]["anyOf"][0]["properties"].clear()
    assert overrides_schema() == before


@pytest.fixture(scope="module")
def accepted() -> Any:
    """Takes overrides as the server does when a run is asked for: True or False."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        schema = parameter_schema(train_to_deploy).model_dump()
    return lambda overrides: not validate({"overrides": overrides}, schema, ignore_required=True)


ACCEPTED: list[Any] = [
    {},
    {"train": None},
    {"train": {}},
    {"train": {"lr": 0.01}},
    {"train": {"lr": 1, "clip_norm": None, "optimizer": "lion"}},
    {"seed": 0, "threads": 256},
    {"train": {"ema": {"decay": 0.9}, "groups": [{"pattern": "^head", "lr_scale": 0.1}]}},
    {"train": {"recovery": {"amplitude": {"action": "stop"}}}},
    {"model": {"kwargs": {"depth": 8, "anything": [1, {"a": None}]}}},
    {"distill": {"student": {"name": "mlp"}, "fit": {"epochs": 1}}},
    {"data": {"resize": [8, 8]}, "nightly": {"cron": "0 2 * * *"}, "promote": {"metric": "macro_f1"}},
]
REFUSED: list[Any] = [
    [],
    {"trian": {}},
    {"train": 5},
    {"train.lr": 0.1},
    {"train": {"lrr": 0.1}},
    {"train": {"lr": -1}},
    {"train": {"lr": 0}},
    {"train": {"lr": "0.1"}},
    {"train": {"lr": None}},
    {"train": {"epochs": 1.5}},
    {"train": {"optimizer": "sgdd"}},
    {"train": {"ema": {"decay": 1.0}}},
    {"train": {"ema": {"dekay": 0.9}}},
    {"train": {"groups": [{"pattern": "^head", "lr_scale": 0}]}},
    {"train": {"groups": {"pattern": "^head"}}},
    {"train": {"recovery": {"amplitude": {"epochs": 3}}}},
    {"distill": {"student": {"nam": "mlp"}}},
    {"prune": {"fit": {"batch_size": 1_000_001}}},
    {"data": {"resize": [8]}},
    {"seed": -1},
    {"seed": 2**31},
    {"threads": 257},
    {"promote": {"metric": "loss"}},
    {"promote": {"automatic": "yes"}},
]


def test_the_schema_is_one() -> None:
    validators = pytest.importorskip("jsonschema.validators")
    validators.Draft202012Validator.check_schema(overrides_schema())


@pytest.mark.parametrize("overrides", ACCEPTED, ids=json.dumps)
def test_the_server_accepts(accepted: Any, overrides: Any) -> None:
    validators = pytest.importorskip("jsonschema.validators")
    assert accepted(overrides)
    assert validators.Draft202012Validator(overrides_schema()).is_valid(overrides)


@pytest.mark.parametrize("overrides", REFUSED, ids=json.dumps)
def test_the_server_refuses(accepted: Any, overrides: Any) -> None:
    validators = pytest.importorskip("jsonschema.validators")
    assert not accepted(overrides)
    assert not validators.Draft202012Validator(overrides_schema()).is_valid(overrides)


def test_the_server_accepts_the_whole_file(accepted: Any) -> None:
    assert accepted(read_yaml(ROOT / "params.yaml"))
    assert accepted(load(ROOT / "params.yaml"))


def test_the_stages_of_the_repository() -> None:
    one_by_one = ["diagnose", "diagnose@train", "diagnose@distill", "diagnose@prune"]
    before = ["prepare_data", "benchmark_data", "find_batch_size", "train"]
    after = ["distill", "prune", "export_onnx", "quantize", "profile_model", "bundle"]
    assert stage_names(ROOT / "dvc.yaml") == [*before, *one_by_one, *after]


def test_the_stages_of_other_files(tmp_path: Path) -> None:
    file = tmp_path / "dvc.yaml"
    file.write_text(
        "stages:\n  a: {foreach: {x: 1, y: 2}, do: {cmd: 'true'}}\n  b: {foreach: '${c}', do: {cmd: 'true'}}\n"
    )
    assert stage_names(file) == ["a", "a@x", "a@y", "b"]
    file.write_text("plots: []\n")
    assert stage_names(file) == []
    file.write_text("stages: [\n")
    with pytest.raises(ParamsError, match="no valid YAML"):
        stage_names(file)
    with pytest.raises(ParamsError, match="not found"):
        stage_names(tmp_path / "none.yaml")


def test_a_stage_is_chosen_among_those_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    schema = parameter_schema(train_to_deploy).model_dump()
    for stage, valid in (("train", True), ("diagnose@train", True), (None, True), ("trian", False), (1, False)):
        assert (not validate({"stage": stage}, schema, ignore_required=True)) is valid, stage
