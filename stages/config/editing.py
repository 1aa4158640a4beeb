"""Edits params.yaml from the command line: validated first, comments kept, written atomically."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from stages.config.loading import PARAMS_FILE, ParamsError, read_yaml, validate


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """`["train.lr=0.01"]` -> `{"train.lr": 0.01}`; values are YAML. Raises `ParamsError`."""
    parsed: dict[str, Any] = {}
    for text in assignments:
        dotted, equals, value = text.partition("=")
        if not equals or not dotted.strip():
            raise ParamsError([f"--set {text!r}: must read key=value, for example train.lr=0.01"])
        try:
            parsed[dotted.strip()] = YAML(typ="safe").load(value) if value.strip() else None
        except YAMLError:
            raise ParamsError([f"--set {text!r}: {value!r} is no valid YAML value"]) from None
    return parsed


def edit(changes: Mapping[str, Any], path: Path = PARAMS_FILE) -> None:
    """Sets dotted keys in the file. Nothing is written unless the whole result is valid. Raises `ParamsError`."""
    read_yaml(path)  # One clear error for a file that is missing or no YAML.
    yaml = YAML()
    yaml.representer.add_representer(type(None), _null)
    yaml.preserve_quotes = True
    yaml.width = 4096
    document = yaml.load(path.read_text(encoding="utf-8"))
    for dotted, value in changes.items():
        _assign(document, dotted, value)
    validate(document, "with these changes, params.yaml")
    buffer = io.StringIO()
    yaml.dump(document, buffer)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(buffer.getvalue(), encoding="utf-8")
    temporary.replace(path)


def _null(representer: Any, _value: None) -> Any:
    """Writes null as `null`: the default, nothing at all, would change lines that nobody asked to change."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _assign(document: Any, dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    node = document
    for name in parents:
        child = node.get(name) if isinstance(node, dict) else None
        if child is None and isinstance(node, dict):
            child = node[name] = {}
        if not isinstance(child, dict):
            raise ParamsError([f"--set {dotted}: {name!r} is no section"])
        node = child
    node[last] = value
