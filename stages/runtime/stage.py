"""`main`: what surrounds a stage's `run`. Validates, seeds, gives it temporary outputs, moves them in place, records.

class Params(StageParams): ...                  # sections of params.yaml that the stage reads

@dataclass(frozen=True)
class Inputs: data: Path = Path("artifacts/prepare_data/data")

@dataclass(frozen=True)
class Outputs: model: Path = Path("artifacts/train/model")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result: ...

if __name__ == "__main__":
main(run, "train", libraries=("torch",))
"""

import dataclasses
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from pydantic import JsonValue

from stages.config.base import StageParams
from stages.config.loading import ParamsError, load
from stages.runtime import embedding, identity, record, seeds, state, stopping
from stages.runtime.exits import BadData, Exit, StageError, as_stage_error
from stages.runtime.files import IDENTITY_FILE, write_json
from stages.runtime.progress import say


@dataclass(frozen=True)
class Result:
    """How a stage's work ended."""

    summary: str
    """The closing line: what was decided, and why."""

    evidence: dict[str, JsonValue] = field(default_factory=dict)
    """Numbers behind it, for `.shipway/last/<stage>.json` and the flow's artifacts."""

    gate: str | None = None
    """Why the gate failed (exit 3); the outputs are still moved in place, so that they can be looked at."""

    run: dict[str, JsonValue] = field(default_factory=dict)
    """What belongs into the run's record (lineage, segments), never into the artifact."""


def main(run: Callable[[Any, Any, Any], Result], stage: str, libraries: Sequence[str] = ()) -> NoReturn:
    """Runs a stage as a process and exits with the documented code. A foreach stage takes its item as argument."""
    instance = sys.argv[1] if len(sys.argv) > 1 else ""
    address = f"{stage}@{instance}" if instance else stage
    started = time.monotonic()
    last = state.last(address)
    try:
        last.unlink(missing_ok=True)
        stopping.install()
        result = _execute(run, address, instance, libraries)
        code = Exit.GATE if result.gate else Exit.DONE
        sentence, evidence = result.gate or result.summary, result.evidence
    except ParamsError as error:
        code, sentence, evidence = Exit.PARAMS, str(error), {"problems": list(error.problems)}
    except stopping.StopRequested:
        code, sentence, evidence = Exit.STOPPED, "stopped on request; run again to go on", {}
    except (SystemExit, KeyboardInterrupt) as error:  # Ctrl-C comes as StopRequested: this was the user's own code.
        said = f"{type(error).__name__}({error})"
        code, evidence = Exit.PARAMS, {"traceback": traceback.format_exc()}
        sentence = f"your own code (factory, dataset, network) tried to end the process: {said}; let it raise an error"
    except Exception as error:
        code, sentence, evidence = _describe(error)
    _finish(last, address, code, sentence, evidence, time.monotonic() - started)


def _describe(error: Exception) -> tuple[Exit, str, dict[str, JsonValue]]:
    foreseen = as_stage_error(error)
    if foreseen is not None:
        return foreseen.code, foreseen.sentence, foreseen.evidence
    traceback.print_exc()
    where = traceback.format_exc()
    return Exit.BUG, f"a bug of Shipway, please report it: {type(error).__name__}: {error}", {"traceback": where}


def _finish(
    last: Path, address: str, code: Exit, sentence: str, evidence: dict[str, JsonValue], seconds: float
) -> NoReturn:
    fields = {"stage": address, "code": int(code), "sentence": sentence, "evidence": evidence, "seconds": seconds}
    try:
        with stopping.polled():
            write_json(last, fields)
    except OSError as error:
        say(f"{address}: cannot write {last}: {error}")
        code = code or Exit.DISK
    kind = "" if code == Exit.DONE else f"{code.name.lower()} (exit {int(code)}): "
    for line in sentence.splitlines():
        say(f"{address}: {kind}{line}")
    sys.stdout.flush()
    sys.exit(int(code))


def _execute(run: Callable[[Any, Any, Any], Result], address: str, instance: str, libraries: Sequence[str]) -> Result:
    hints = get_type_hints(run)
    whole = load()
    params: StageParams = hints["params"].model_validate(whole)
    inputs = _paths(hints["inputs"], instance)
    _require(inputs)
    seeds.apply(whole["seed"], whole["threads"])
    made_of = identity.build(address, params, libraries)
    final = _paths(hints["outputs"], instance)
    with _Workplace(address, final) as workplace:
        workplace.prepare(made_of)
        result = run(params, inputs, workplace.outputs)
        workplace.check()
        for path in workplace.all():
            embedding.embed_all(path, identity.embedded(made_of))
        with stopping.polled():  # The work is done: a stop that comes now waits for its last renames.
            workplace.move()
            record.write(address, _values(final), made_of, {"result": result.run, "summary": result.summary})
    return result


def _paths(schema: Any, instance: str) -> Any:
    """The pipeline's own paths of a stage's Inputs or Outputs, with `{instance}` filled in."""
    return schema(**{f.name: Path(str(f.default).format(instance=instance)) for f in dataclasses.fields(schema)})


def _values(paths: Any) -> list[Path]:
    return [getattr(paths, f.name) for f in dataclasses.fields(paths)]


def _require(inputs: Any) -> None:
    for path in _values(inputs):
        if not path.exists():
            maker = path.parts[1] if len(path.parts) > 1 else "?"
            raise BadData(f"{path} is missing; make it with `shipway run {maker}` or fetch it with `dvc checkout`")


class _Workplace:
    """Temporary outputs on the artifacts' own file system, moved in place when all of them are there.

    Each output is moved whole. A stop waits until all are; a process that is killed between two of them leaves the
    former others, and dvc.lock, which was not written, then fits neither: the stage runs again.
    """

    def __init__(self, address: str, final: Any) -> None:
        self.final = final
        self.root = Path("artifacts") / f".{address}.{os.getpid()}"
        names = [f.name for f in dataclasses.fields(final)]
        moved = {name: self.root / getattr(final, name).relative_to("artifacts") for name in names}
        self.outputs = dataclasses.replace(final, **moved)

    def __enter__(self) -> "_Workplace":
        _remove_leftovers(self.root)
        self.root.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def all(self) -> list[Path]:
        return _values(self.outputs)

    def prepare(self, made_of: dict[str, Any]) -> None:
        for path in self.all():
            is_folder = not path.suffix
            (path if is_folder else path.parent).mkdir(parents=True, exist_ok=True)
            if is_folder:
                write_json(path / IDENTITY_FILE, made_of)

    def check(self) -> None:
        missing = [str(path) for path in self.all() if not path.exists()]
        if missing:
            raise StageError(f"the stage did not write {', '.join(missing)}")

    def move(self) -> None:
        for made, place in zip(self.all(), _values(self.final), strict=True):
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                shutil.rmtree(place)
            made.replace(place)


def _remove_leftovers(root: Path) -> None:
    """Removes the work folders that killed runs of this stage left; one with this process's id is such a one too."""
    if not root.parent.is_dir():
        return
    for path in root.parent.iterdir():
        pid = path.suffix[1:]
        if path.stem == root.stem and pid.isdigit() and (path == root or not stopping.is_alive(int(pid))):
            shutil.rmtree(path)
