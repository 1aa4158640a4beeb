"""The form of a served run: its schema comes from the stages' own schemas, free of torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from stages.config.loading import read_yaml
from stages.config.pipeline import Pipeline

_SHARED = "$defs"
_NOTHING = {"type": "null", "title": "unchanged"}

Json = dict[str, Any]


def overrides_schema() -> Json:
    """JSON schema of what may be overridden: every section and field of params.yaml, none of them required.

    Bounds, choices and descriptions are the schemas' own. What is left out stays as params.yaml has it, so no field is
    filled in beforehand: its default stands in its description.
    """
    schema = Pipeline.model_json_schema()
    fields = _fields(schema, schema[_SHARED])
    sections = {name: _closed(field) if "properties" in field else field for name, field in fields.items()}
    return {"type": "object", "title": "overrides", "properties": sections, "additionalProperties": False}


def _closed(section: Json) -> Json:
    """A section that the form shows only to those who open it."""
    outer: Json = {key: section[key] for key in ("title", "description") if key in section}
    return {**outer, "anyOf": [section, _NOTHING], "default": None}


def _fields(schema: Json, shared: Mapping[str, Json]) -> Json:
    """The properties of a schema, by the names that params.yaml gives them."""
    return {name: {**_field(field, shared), "title": name} for name, field in schema["properties"].items()}


def _field(field: Json, shared: Mapping[str, Json]) -> Json:
    """Each definition in the place where it is referred to; the default in words."""
    if "$ref" in field:
        rest = {key: value for key, value in field.items() if key != "$ref"}
        return _field({**shared[field["$ref"].rpartition("/")[2]], **rest}, shared)
    found = {key: value for key, value in field.items() if key not in ("required", "default", "title")}
    if "properties" in field:
        found["properties"] = _fields(field, shared)
        found["title"] = field.get("title", "")
        return found
    for key in ("items", "additionalProperties"):
        if isinstance(field.get(key), dict):
            found[key] = _field(field[key], shared)
    if "anyOf" in field:
        found["anyOf"] = [_field(one, shared) for one in field["anyOf"]]
    if "default" in field:
        default = "null" if field["default"] is None else field["default"]
        found["description"] = f"{' '.join(field.get('description', '').split())} (default: {default})"
    return found


class Overrides:
    """Marks a flow's parameter: a mapping of sections to fields, shown as the form of `overrides_schema`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A plain mapping; whether the whole is valid is decided on the edited params.yaml."""
        return core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """For the form."""
        return overrides_schema()


class StageName:
    """Marks a flow's parameter: the name of a stage of dvc.yaml, shown as a choice."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """For the form."""
        return {"type": "string", "enum": stage_names(Path("dvc.yaml"))}


def stage_names(file: Path) -> list[str]:
    """The stages of a dvc.yaml as they may be asked for; those of a `foreach` also one by one. Raises `ParamsError`."""
    names = []
    for name, stage in read_yaml(file).get("stages", {}).items():
        over = stage.get("foreach", [])
        names += [name, *(f"{name}@{item}" for item in over if isinstance(over, list | dict))]
    return names
