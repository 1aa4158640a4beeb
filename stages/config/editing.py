"""Edits params.yaml from the command line: validated first, comments kept, written atomically."""

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.tokens import CommentToken

from stages.config.loading import PARAMS_FILE, ParamsError, load, read_yaml, validate

_MISSING = object()
_LIST_ITEM = re.compile(r"^( *)(\w[^\n]*):[ \t]*(?:#[^\n]*)?\n( *)- ", re.MULTILINE)


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """`["train.lr=0.01"]` -> `{"train.lr": 0.01}`; values are YAML. Raises `ParamsError`."""
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for text in assignments:
        dotted, equals, value = text.partition("=")
        if not equals or not dotted.strip():
            problems.append(f"--set {text!r}: must read key=value, for example train.lr=0.01")
            continue
        try:
            parsed[dotted.strip()] = YAML(typ="safe").load(value) if value.strip() else None
        except YAMLError:
            problems.append(f"--set {text!r}: {value!r} is no valid YAML value")
    if problems:
        raise ParamsError(problems)
    return parsed


def changes_in(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Nested overrides as dotted keys: `{"train": {"lr": 0.01}}` -> `{"train.lr": 0.01}`.

    What is no section (a model's kwargs, a list, an optional group of settings) is one value, replaced whole.
    """
    from stages.config.pipeline import Pipeline  # As in `validate`: no stage depends on every section's schema.

    return dict(_flat("", overrides, Pipeline))


def _flat(path: str, values: Mapping[str, Any], schema: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        field = schema.model_fields.get(name)
        below = field.annotation if field is not None else None
        section = below if isinstance(below, type) and issubclass(below, BaseModel) else None
        if isinstance(value, Mapping) and section is not None:
            yield from _flat(f"{path}{name}.", value, section)
        elif value is not None or section is None:  # Of a section null says nothing; of a value it is null.
            yield f"{path}{name}", value


def edit(changes: Mapping[str, Any], path: Path = PARAMS_FILE) -> dict[str, tuple[Any, Any]]:
    """Sets dotted keys in the file. Nothing is written unless the whole result is valid. Raises `ParamsError`.

    Returns what really changed: `{"train.lr": (0.003, 0.01)}`, defaults counted. A file in which nothing changes is
    not touched.
    """
    before = read_yaml(path)  # One clear error for a file that is missing or no YAML.
    text = path.read_text(encoding="utf-8")
    yaml = _round_trip(text)
    document = yaml.load(text)
    for dotted, value in changes.items():
        _assign(document, dotted, value)
    after = validate(document, "with these changes, params.yaml")
    changed = _changed(before, after, changes)
    if changed:
        buffer = io.StringIO()
        yaml.dump(document, buffer)
        replace_text(path, buffer.getvalue())
    return changed


def changes_to(sections: Mapping[str, Any], path: Path = PARAMS_FILE) -> dict[str, Any]:
    """The dotted keys that must be set so that these sections hold: only what differs, key by key.

    `sections` maps dotted keys or sections to whole values, as an artifact's identity records them. A mapping whose
    keys differ (a model's kwargs) is replaced whole. Raises `ParamsError` when the file itself is invalid.
    """
    current = load(path)
    found: dict[str, Any] = {}
    for dotted, wanted in sections.items():
        found.update(_differences(dotted, _get(current, dotted), wanted))
    return found


def _differences(dotted: str, current: Any, wanted: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(current, dict) and isinstance(wanted, dict) and current.keys() == wanted.keys():
        for name in wanted:
            yield from _differences(f"{dotted}.{name}", current[name], wanted[name])
    elif current != wanted or type(current) is not type(wanted):
        yield dotted, wanted


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Old and new values of the keys that differ. The file may have been invalid before: then it is read as written."""
    with suppress(ParamsError):
        before = validate(before)
    pairs = {dotted: (_get(before, dotted), _get(after, dotted)) for dotted in keys}
    missing_as_none = {key: (None if old is _MISSING else old, new) for key, (old, new) in pairs.items()}
    return {key: (old, new) for key, (old, new) in missing_as_none.items() if old != new or type(old) is not type(new)}


def _get(values: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return _MISSING
        values = values[name]
    return values


def _round_trip(text: str) -> YAML:
    """A parser that writes back what it did not change as it stood: quotes, long lines, indented lists."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.representer.add_representer(type(None), _null)
    item = _LIST_ITEM.search(text)
    if item and len(item.group(3)) > len(item.group(1)):
        offset = len(item.group(3)) - len(item.group(1))
        yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml


def _null(representer: Any, _value: None) -> Any:
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def replace_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a kill half-way leaves the former one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _assign(document: Any, dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    node = document
    for name in parents:
        child = node.get(name) if isinstance(node, dict) else None
        if child is None and isinstance(node, dict):
            child = node[name] = CommentedMap()
        if not isinstance(child, dict):
            raise ParamsError([f"--set {dotted}: {name!r} is no section"])
        node = child
    if not isinstance(node, dict):
        raise ParamsError(["params.yaml: must hold sections (key: value)"])
    styled = _styled(value, node.get(last))
    if last in node or not isinstance(node, CommentedMap) or node.fa.flow_style():
        node[last] = styled
    else:
        _append(node, last, styled)


def _append(node: CommentedMap, name: str, value: Any) -> None:
    """Adds a key at the end of a section, before the empty line and the comment that lead to the next one."""
    holder, last = node, next(reversed(node), None)
    while last is not None and isinstance(holder[last], CommentedMap) and holder[last]:
        if holder[last].fa.flow_style():
            break
        holder = holder[last]  # The comment hangs on the last line that stands before it, however deep.
        last = next(reversed(holder))
    node[name] = value
    tokens = holder.ca.items.get(last)
    token = tokens[2] if tokens else None
    if token is None:
        return
    same_line, newline, following = token.value.partition("\n")
    if following:
        token.value = same_line + newline
        node.ca.items[name] = [None, None, CommentToken("\n" + following, token.start_mark, None), None]


def _styled(value: Any, old: Any) -> Any:
    """A list or a mapping in one line, unless the one that it replaces stands over several."""
    if not isinstance(value, list | dict):
        return value
    styled = CommentedSeq(value) if isinstance(value, list) else CommentedMap(value)
    several_lines = isinstance(old, CommentedSeq | CommentedMap) and not old.fa.flow_style()
    if not several_lines:
        styled.fa.set_flow_style()
    return styled
