"""Reads and validates params.yaml: all errors at once, each with its path, the value it got and what is allowed."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

PARAMS_FILE = Path("params.yaml")
READ_BY_DVC = ("data.path", "train.batch_size")
"""Keys that dvc.yaml itself reads below a section: DVC knows no defaults, so they must stand in the file."""


class ParamsError(Exception):
    """params.yaml cannot be used. `problems` holds one line per fault."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as plain values, read as DVC reads it (YAML 1.2). Raises `ParamsError`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ParamsError([f"{path}: not found; run from the root of the repository"]) from None
    return parse_yaml(content, str(path))


def parse_yaml(content: bytes, where: str) -> dict[str, Any]:
    """The content of such a file; `where` names it in messages. Raises `ParamsError`."""
    try:
        loaded = YAML(typ="safe").load(content.decode())
    except (YAMLError, ValueError, RecursionError) as error:  # No UTF-8, a number too long to be one.
        raise ParamsError([f"{where}: no valid YAML: {' '.join(str(error).split())}"]) from None
    if not isinstance(loaded, dict):
        raise ParamsError([f"{where}: must hold sections (key: value), got {type(loaded).__name__}"])
    return loaded


def load(path: Path = PARAMS_FILE) -> dict[str, Any]:
    """The whole file, validated, defaults filled in, as plain values. Raises `ParamsError`."""
    return validate(read_yaml(path), str(path))


def validate(values: Mapping[str, Any], where: str = "params.yaml") -> dict[str, Any]:
    """Validates all sections at once, and that what dvc.yaml reads is there. Raises `ParamsError` with every fault."""
    from stages.config.pipeline import Pipeline  # Here, so that a stage does not depend on every section's schema.

    problems = left_out(values, Pipeline)
    try:
        validated = Pipeline.model_validate(values).model_dump()
    except ValidationError as error:
        problems = explain(error, Pipeline) + problems
    if problems:
        raise ParamsError([f"{where}: {line}" for line in problems])
    return validated


def left_out(values: Mapping[str, Any], schema: type[BaseModel]) -> list[str]:
    """One line for each key of `READ_BY_DVC` that its section leaves to the schema's default."""
    lines = []
    for dotted in READ_BY_DVC:
        section, name = dotted.split(".")
        given = values.get(section)
        if isinstance(given, Mapping) and name not in given:
            fields: Any = schema.model_fields[section].annotation
            default = fields.model_fields[name].default
            lines.append(f"{dotted}: required in params.yaml, since dvc.yaml reads it; its default is {default}")
    return lines


def explain(error: ValidationError, schema: type[BaseModel]) -> list[str]:
    """One line per fault: path, what is required, what came, the nearest valid name for an unknown key."""
    return [_line(fault, schema) for fault in error.errors(include_url=False)]


def _line(fault: Any, schema: type[BaseModel]) -> str:
    # pydantic puts the names of a union's members into the path; they are no keys.
    loc = [part for part in fault["loc"] if isinstance(part, int) or part == fault["loc"][-1] or part.isidentifier()]
    path = ".".join(map(str, loc)) or "the file"
    if fault["type"] == "extra_forbidden":
        valid = _names(schema, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{path}: unknown key; {hint}allowed here: {', '.join(valid)}"
    if fault["type"] == "missing":
        return f"{path}: required, but missing"
    said = fault["msg"].removeprefix("Value error, ")
    sentence = f"{path}: {said[:1].lower()}{said[1:]}"
    is_whole_section = fault["type"] == "value_error" and isinstance(fault["input"], dict)
    return sentence if is_whole_section else f"{sentence}; got {fault['input']!r}"


def _names(schema: Any, loc: list[Any]) -> list[str]:
    for part in loc:
        schema = schema.model_fields[part].annotation
    return sorted(schema.model_fields)
