"""dvc.yaml against the code: dependencies cover the imports, parameters cover what is read, paths agree."""

import ast
import dataclasses
import importlib
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from ruamel.yaml import YAML

from stages.config.base import StageParams

ROOT = Path(__file__).parent.parent.parent
DVC = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())
STAGES = {name: entry.get("do", entry) for name, entry in DVC["stages"].items()}
EXEMPT = {"stages/config/pipeline.py"}  # The validation of the whole file, with all that only it imports.


def module_file(name: str) -> Path | None:
    """The file of a first-party module, or None."""
    base = ROOT.joinpath(*name.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imports_of(file: Path) -> set[str]:
    """First-party modules that a file imports anywhere, also inside functions and by `-m` in a command list."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("stages."):
            found.add(node.value)  # `[sys.executable, "-m", "stages.training.probe"]`
    return {name for name in found if name.split(".")[0] == "stages"}


def transitive(start: Path) -> set[str]:
    """Every first-party file that a stage reaches by imports, as paths from the root."""
    seen: set[Path] = set()
    todo = [start]
    while todo:
        file = todo.pop()
        if file in seen or file.relative_to(ROOT).as_posix() in EXEMPT:
            continue
        seen.add(file)
        todo += [target for name in imports_of(file) if (target := module_file(name)) is not None]
    return {file.relative_to(ROOT).as_posix() for file in seen}


def is_bare_package(path: str) -> bool:
    """An `__init__.py` with a docstring only: importing it runs nothing."""
    return path.endswith("__init__.py") and len(ast.parse((ROOT / path).read_text()).body) <= 1


@pytest.mark.parametrize("stage", STAGES)
def test_dependencies_cover_every_import(stage: str) -> None:
    deps = STAGES[stage]["deps"]
    reached = transitive(ROOT / "stages" / f"{stage}.py")
    missing = {
        path
        for path in reached
        if not any(path == dep or path.startswith(f"{dep}/") for dep in deps) and not is_bare_package(path)
    }
    assert not missing, f"{stage} imports these, but dvc.yaml does not list them: {sorted(missing)}"


@pytest.mark.parametrize("stage", STAGES)
def test_no_code_dependency_is_idle(stage: str) -> None:
    reached = transitive(ROOT / "stages" / f"{stage}.py")
    code = [dep for dep in STAGES[stage]["deps"] if dep.startswith("stages/")]
    idle = [dep for dep in code if not any(path == dep or path.startswith(f"{dep}/") for path in reached)]
    assert not idle, f"{stage} does not import these: an edit of them would make it stale for nothing: {idle}"


def hints(stage: str) -> dict[str, Any]:
    return get_type_hints(importlib.import_module(f"stages.{stage}").run)


@pytest.mark.parametrize("stage", STAGES)
def test_declared_params_are_those_that_are_read(stage: str) -> None:
    params: type[StageParams] = hints(stage)["params"]
    assert params.declared() == sorted(STAGES[stage]["params"])


@pytest.mark.parametrize("stage", STAGES)
def test_inputs_and_outputs_are_those_of_the_graph(stage: str) -> None:
    def paths(schema: Any) -> set[str]:
        return {str(f.default).replace("{instance}", "${item}") for f in dataclasses.fields(schema)}

    entry = STAGES[stage]
    listed = {next(iter(out)) if isinstance(out, dict) else out for out in entry["outs"] + entry.get("metrics", [])}
    assert paths(hints(stage)["outputs"]) == listed
    artifacts = {dep for dep in entry["deps"] if dep.startswith("artifacts/")}
    assert paths(hints(stage)["inputs"]) == artifacts


def test_nothing_is_always_changed() -> None:
    assert not [name for name, entry in STAGES.items() if entry.get("always_changed")]


def test_every_stage_has_a_file_a_section_and_a_place_in_the_graph() -> None:
    files = {path.stem for path in (ROOT / "stages").glob("*.py")} - {"__init__"}
    sections = set(YAML(typ="safe").load((ROOT / "params.yaml").read_text()))
    assert files == set(STAGES)
    assert files <= sections
