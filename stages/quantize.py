"""Stage `quantize`: the INT8 model when it is as good and faster, else the float one, with the reason."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.config.base import StageParams
from stages.config.quantize import Quantize
from stages.data.prepared import Prepared
from stages.deployment import graphs
from stages.deployment.selection import FLOAT, Decision, Task, decide
from stages.runtime import decisions, embedding, identity, measured
from stages.runtime.files import IDENTITY_FILE, read_json, sha256_file, write_json
from stages.runtime.stage import Result, main

MODEL, DECISION = "model.onnx", "decision.json"
MEASURED = Path("artifacts/quantize/measured.json")


class Params(StageParams):
    """What the stage reads of params.yaml."""

    quantize: Quantize


@dataclass(frozen=True)
class Inputs:
    """What the stage reads."""

    data: Path = Path("artifacts/prepare_data/data")
    model: Path = Path("artifacts/export_onnx/model")


@dataclass(frozen=True)
class Outputs:
    """What the stage leaves."""

    model: Path = Path("artifacts/quantize/model")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """See the module. Raises `BadData` for a broken model or broken calibration data."""
    source = inputs.model / MODEL
    if not params.quantize.enabled:
        decision = Decision(FLOAT, None, "quantize.enabled is false", {"status": "skipped"})
        _hand_on(source, outputs.model)
    elif params.quantize.fixed == FLOAT:
        decision = Decision(FLOAT, None, "quantize.fixed asks for float", {"status": "skipped"})
        _hand_on(source, outputs.model)
    else:
        with tempfile.TemporaryDirectory(prefix="shipway-quantize-") as folder:
            prepared = Prepared.open(inputs.data)
            task = Task(source, prepared, params.quantize, params.seed, params.threads, Path(folder))
            decision = decide(task)
            _hand_on(task.file(decision.candidate or FLOAT), outputs.model)
    write_json(outputs.model / DECISION, decision.to_json())
    digest = _stamp(outputs.model)
    measured.write(MEASURED, _measured(decision, source, outputs.model / MODEL), of=digest)
    return Result(
        summary=_summary(decision),
        evidence={"chosen": decision.chosen, "reason": decision.reason},
        run={"device": decisions.device_key()},
    )


def _hand_on(source: Path, folder: Path) -> None:
    """Byte for byte, external data included; it keeps its name, which the model refers to."""
    main_file, *data = graphs.files_of(source)
    shutil.copyfile(main_file, folder / MODEL)
    for file in data:
        shutil.copyfile(file, folder / file.name)


def _stamp(folder: Path) -> str:
    """The digest of the model as it will lie in place: with the identity, which `main` would else embed later."""
    if (folder / IDENTITY_FILE).is_file():
        embedding.embed_all(folder, identity.embedded(read_json(folder / IDENTITY_FILE)))
    return sha256_file(folder / MODEL)


def _measured(decision: Decision, source: Path, final: Path) -> dict[str, Any]:
    latency = {name: {"p50_ms": taken.p50_ms, "p95_ms": taken.p95_ms} for name, taken in decision.timings.items()}
    ratio = graphs.size_bytes(final) / graphs.size_bytes(source)
    values: dict[str, Any] = {"device": decisions.device_key(), "latency": latency, "size_ratio": ratio}
    if decision.candidate:
        values["speedup"] = decision.timings[decision.candidate].speedup_over(decision.timings[FLOAT])
    return values


def _summary(decision: Decision) -> str:
    what = f"{decision.chosen} ({decision.candidate})" if decision.candidate else decision.chosen
    if FLOAT not in decision.timings:
        return f"{what}: {decision.reason}"
    timings = dict(decision.timings)
    baseline = timings.pop(FLOAT)
    factors = ", ".join(f"{name} {taken.speedup_over(baseline):.2f}x" for name, taken in timings.items())
    kept = "; the former choice was kept" if decision.kept else ""
    return f"{what}: {decision.reason} [now: float {baseline.p50_ms:.3f} ms, speed-up of {factors}{kept}]"


if __name__ == "__main__":
    main(run, "quantize", libraries=("onnx", "onnxruntime"))
