"""Stage `benchmark_data`: measures loader settings on the prepared data and keeps the fastest as a sticky decision."""

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import JsonValue

from stages.config.base import StageParams, key
from stages.config.benchmark_data import BenchmarkData
from stages.data.loader_benchmark import DEFAULT_LOADER, Speed, bound, candidates, measure
from stages.data.loaders import STAGE, LoaderSettings, decision_key, describe
from stages.data.prepared import Prepared
from stages.runtime import decisions, measured
from stages.runtime.files import write_json
from stages.runtime.stage import Result, main

MEASURED = Path("artifacts/benchmark_data/measured.json")
"""No output: it differs from run to run. Stamped with the data's hash."""


class Params(StageParams):
    """What the stage reads of params.yaml."""

    benchmark_data: BenchmarkData
    batch_size: int = key("train.batch_size")


@dataclass(frozen=True)
class Inputs:
    """What the stage takes."""

    data: Path = Path("artifacts/prepare_data/data")


@dataclass(frozen=True)
class Outputs:
    """A constant: loader settings never change a result, so nothing after this stage may depend on them."""

    done: Path = Path("artifacts/benchmark_data/done.json")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """Measures, decides, writes the decision and the measurement. Raises `BadData` when no batch can be loaded."""
    prepared = Prepared.open(inputs.data)
    settings = params.benchmark_data
    fixed = settings.fixed_workers
    choices = candidates(settings.workers if fixed is None else [fixed])
    if fixed is not None:
        choices = {name: choice for name, choice in choices.items() if choice.batched}
    speeds = measure(
        prepared,
        choices,
        batch_size=params.batch_size,
        limit=settings.batches,
        time_budget_s=settings.time_budget_s,
        seed=params.seed,
    )
    chosen, why = _decide(prepared, choices, speeds, fixed)
    measured.write(MEASURED, _measurement(chosen, speeds, params.batch_size), of=prepared.info.hash)
    write_json(outputs.done, {"done": True})
    return Result(_summary(prepared, chosen, speeds, why), _measurement(chosen, speeds, params.batch_size))


def _decide(
    prepared: Prepared, choices: dict[str, LoaderSettings], speeds: dict[str, Speed], fixed: int | None
) -> tuple[LoaderSettings, str]:
    found = decision_key(prepared)
    values = {name: asdict(choice) for name, choice in choices.items()}
    cost = {name: speeds[name].epoch_s for name in choices}
    if fixed is not None:
        (name,) = choices
        decisions.keep(STAGE, found, values[name], {"cost": cost, "fixed": True})
        return choices[name], "fixed by benchmark_data.fixed_workers"
    value, kept = decisions.stick(STAGE, found, cost, values)
    return LoaderSettings(**value), "kept: nothing is more than 10% faster" if kept else "the fastest"


def _measurement(chosen: LoaderSettings, speeds: dict[str, Speed], batch_size: int) -> dict[str, JsonValue]:
    return {
        "chosen": describe(chosen),
        "batch_size": batch_size,
        "gain_over_default_loader": _gain(chosen, speeds),
        "loaders": {name: dict(asdict(speed)) for name, speed in speeds.items()},
    }


def _gain(chosen: LoaderSettings, speeds: dict[str, Speed]) -> float:
    return speeds[DEFAULT_LOADER].epoch_s / speeds[describe(chosen)].epoch_s


def _summary(prepared: Prepared, chosen: LoaderSettings, speeds: dict[str, Speed], why: str) -> str:
    speed = speeds[describe(chosen)]
    rate = f"{speed.samples_per_s:,.0f} samples/s, first batch after {speed.first_batch_ms:.1f} ms"
    gain = f"{_gain(chosen, speeds):.1f}x the default loader"
    return f"{describe(chosen)} ({why}): {gain}, {rate}; {bound(prepared, chosen, speeds)}"


if __name__ == "__main__":
    main(run, STAGE, libraries=("torch",))
