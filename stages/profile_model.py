"""Stage `profile_model`: every variant measured on its saved file, and the targets that the final one must keep."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.config.base import StageParams
from stages.config.profile_model import ProfileModel
from stages.config.targets import Targets
from stages.data.prepared import Prepared
from stages.deployment.evaluation import Scores
from stages.deployment.profiling import FINAL, Profile, Target, check_targets, profile, table, variants
from stages.runtime import measured
from stages.runtime.files import sha256_file, write_bytes, write_json
from stages.runtime.progress import say
from stages.runtime.stage import Result, main

MEASURED = Path("artifacts/profile_model/measured.json")
MEASURED_CSV = Path("artifacts/profile_model/measured.csv")


class Params(StageParams):
    """What the stage reads of params.yaml."""

    profile_model: ProfileModel
    targets: Targets


@dataclass(frozen=True)
class Inputs:
    """What the stage reads."""

    data: Path = Path("artifacts/prepare_data/data")
    exported: Path = Path("artifacts/export_onnx/model")
    final: Path = Path("artifacts/quantize/model")


@dataclass(frozen=True)
class Outputs:
    """What the stage leaves."""

    targets: Path = Path("artifacts/profile_model/targets")
    confusion: Path = Path("artifacts/profile_model/confusion.csv")
    metrics: Path = Path("artifacts/profile_model/metrics.json")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """See the module. A missed target fails the gate; all that was measured is kept."""
    prepared = Prepared.open(inputs.data)
    profiles = profile(variants(inputs.exported, inputs.final), prepared, params.profile_model, params.threads)
    final = profiles[FINAL]
    targets = check_targets(params.targets, final)
    _write_metrics(outputs.metrics, profiles)
    _write_confusion(outputs.confusion, final.scores, prepared.info.classes)
    _write_targets(outputs.targets / "targets.json", targets, profiles)
    _write_measured(profiles, of=sha256_file(final.variant.path))
    for line in table(profiles):
        say(line)
    missed = [target.sentence() for target in targets if not target.holds]
    return Result(
        summary=_summary(final, targets),
        evidence={name: {**found.metrics(), **found.measured()} for name, found in profiles.items()},
        gate=f"{'; '.join(missed)}; loosen the target or improve the model" if missed else None,
    )


def _summary(final: Profile, targets: list[Target]) -> str:
    kept = f"all {len(targets)} targets hold" if targets else "no targets are set"
    return (
        f"the final model ({final.variant.number_type}): accuracy {final.scores.accuracy:.4f}, "
        f"p95 {final.latency.p95_ms:.3f} ms at batch 1; {kept}"
    )


def _write_metrics(path: Path, profiles: dict[str, Profile]) -> None:
    """In the pipeline's order, the teacher first, which `write_json` would sort away."""
    values = {"variants": {name: found.metrics() for name, found in profiles.items()}}
    write_bytes(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


def _write_confusion(path: Path, scores: Scores, classes: tuple[str, ...]) -> None:
    """A row per test sample, as the template `confusion` of `dvc plots` wants it: it counts by itself."""
    rows = [[classes[actual], classes[predicted]] for actual, predicted in _pairs(scores)]
    _write_csv(path, ["actual", "predicted"], rows)


def _pairs(scores: Scores) -> list[tuple[int, int]]:
    return [(int(actual), int(predicted)) for actual, predicted in zip(scores.actual, scores.predicted, strict=True)]


def _write_targets(path: Path, targets: list[Target], profiles: dict[str, Profile]) -> None:
    first = next(iter(profiles.values()))
    values = {
        "all_hold": all(target.holds for target in targets),
        "targets": [target.to_json() for target in targets],
        "final": profiles[FINAL].metrics(),
        "baseline": {"name": first.variant.name, **first.metrics()},
    }
    write_json(path, values)


def _write_measured(profiles: dict[str, Profile], of: str) -> None:
    measured.write(MEASURED, {"variants": {name: found.measured() for name, found in profiles.items()}}, of=of)
    rows = [
        [name, f"{found.latency.p50_ms:.4f}", f"{found.latency.p95_ms:.4f}", of] for name, found in profiles.items()
    ]
    _write_csv(MEASURED_CSV, ["variant", "p50_ms", "p95_ms", "measured_digest"], rows)


def _write_csv(path: Path, heading: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


if __name__ == "__main__":
    main(run, "profile_model", libraries=("onnx", "onnxruntime"))
