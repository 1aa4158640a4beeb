"""Stage `find_batch_size`: splits the effective batch into micro-batch x accumulation that this machine's memory holds.

Free of torch: a child process imports it and runs the sizes.
"""

from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stages.config.base import StageParams, key
from stages.config.find_batch_size import FindBatchSize
from stages.config.model import Model
from stages.data.prepared import Prepared
from stages.runtime import decisions, measured
from stages.runtime.exits import BadParams
from stages.runtime.files import digest, write_json
from stages.runtime.progress import say
from stages.runtime.stage import Result, main
from stages.training.batch_search import Prober, Search, prefer_former, search

STAGE = "find_batch_size"
MEASURED = Path("artifacts/find_batch_size/measured.json")


class FindBatchSizeParams(StageParams):
    """What the stage reads of params.yaml."""

    model: Model
    find_batch_size: FindBatchSize
    batch_size: int = key("train.batch_size")


@dataclass(frozen=True)
class Inputs:
    """What other stages left."""

    data: Path = Path("artifacts/prepare_data/data")


@dataclass(frozen=True)
class Outputs:
    """What this stage leaves."""

    decision: Path = Path("artifacts/find_batch_size/decision")


def run(params: FindBatchSizeParams, inputs: Inputs, outputs: Outputs) -> Result:
    """Leaves decision.json: micro_batch, accumulation, device (null when the micro-batch is fixed by parameter)."""
    prepared = Prepared.open(inputs.data)
    samples = len(prepared.indices("train"))
    if params.batch_size > samples:
        say(f"train.batch_size {params.batch_size} is above the {samples} train samples: each step takes them all")
    if params.find_batch_size.fixed_micro_batch is not None:
        return _fixed(params.find_batch_size.fixed_micro_batch, params.batch_size, outputs)
    setup = _setup(params, prepared)
    with Prober(setup, params.find_batch_size.safety_margin) as prober:
        kept_under = _key(params, setup, prober.device)
        former = decisions.recall(STAGE, kept_under)
        found = search(params.batch_size, prober)
        if former is not None:
            found = prefer_former(found, int(former["choice"]), params.batch_size, prober)
        device = prober.device
    chosen = found.chosen
    evidence = {**asdict(chosen), "limit_mib": round(found.limit_mib, 1), "tried": found.tried}
    if former is None or former["choice"] != chosen.micro_batch:
        decisions.keep(STAGE, kept_under, chosen.micro_batch, evidence)
    _write(outputs, chosen.micro_batch, params.batch_size, device)
    measured.write(MEASURED, evidence, of=digest(outputs.decision / "decision.json"))
    return Result(_summary(found, params.batch_size), evidence)


def _setup(params: FindBatchSizeParams, prepared: Prepared) -> dict[str, Any]:
    return {
        "model": params.model.model_dump(),
        "shape": list(prepared.info.shape),
        "dtype": prepared.info.dtype,
        "classes": len(prepared.info.classes),
        "samples": len(prepared.indices("train")),
        "batch_size": params.batch_size,
        "seed": params.seed,
        "threads": params.threads,
        "budget_mib": params.find_batch_size.memory_budget_mib,
    }


def _key(params: FindBatchSizeParams, setup: dict[str, Any], device: dict[str, Any]) -> dict[str, Any]:
    """What the decision depends on. The budget that was found at run time is no part: it changes by the minute."""
    without = {name: value for name, value in setup.items() if name != "seed"}
    margin = params.find_batch_size.safety_margin
    return {**without, "safety_margin": margin, "device": device, "versions": {"torch": version("torch")}}


def _fixed(micro_batch: int, batch_size: int, outputs: Outputs) -> Result:
    if batch_size % micro_batch:
        near = max(size for size in range(1, min(micro_batch, batch_size) + 1) if batch_size % size == 0)
        raise BadParams(
            f"find_batch_size.fixed_micro_batch must divide train.batch_size {batch_size}, got {micro_batch}; "
            f"take {near}"
        )
    _write(outputs, micro_batch, batch_size, device=None)
    measured.write(MEASURED, {"fixed": True}, of=digest(outputs.decision / "decision.json"))
    return Result(f"micro-batch {micro_batch} x {batch_size // micro_batch}: fixed by parameter, nothing measured")


def _write(outputs: Outputs, micro_batch: int, batch_size: int, device: dict[str, Any] | None) -> None:
    values = {"micro_batch": micro_batch, "accumulation": batch_size // micro_batch, "device": device}
    write_json(outputs.decision / "decision.json", values)


def _summary(found: Search, batch_size: int) -> str:
    chosen = found.chosen
    refused = [str(row["micro_batch"]) for row in found.tried if not row["fits"]]
    why = f"{', '.join(refused)} took too much" if refused else "the whole batch fits"
    if found.passed_over is not None:
        why = f"kept from before: {found.passed_over} fits too, but is not clearly faster"
    split = f"micro-batch {chosen.micro_batch} x {batch_size // chosen.micro_batch} ({why})"
    return f"{split}: peak {chosen.peak_mib:.0f} of {found.limit_mib:.0f} MiB, {chosen.step_ms:.0f} ms a step"


if __name__ == "__main__":
    main(run, STAGE, libraries=("torch",))
