"""Stage `diagnose`: reads what a training recorded and says whether it may go on to compression."""

from dataclasses import dataclass
from pathlib import Path

from stages.config.base import StageParams
from stages.config.diagnose import Diagnose
from stages.diagnosis.history import read_history
from stages.diagnosis.verdict import diagnose
from stages.runtime.files import write_json
from stages.runtime.stage import Result, main


class DiagnoseParams(StageParams):
    """What the stage reads of params.yaml."""

    diagnose: Diagnose


@dataclass(frozen=True)
class Inputs:
    """What the stage takes."""

    history: Path = Path("artifacts/{instance}/history")


@dataclass(frozen=True)
class Outputs:
    """What the stage leaves."""

    verdict: Path = Path("artifacts/diagnose/{instance}")


def run(params: DiagnoseParams, inputs: Inputs, outputs: Outputs) -> Result:
    """Writes `verdict.json`; the gate fails when the findings include one of `diagnose.fail_on`."""
    verdict = diagnose(read_history(inputs.history), params.diagnose)
    values = verdict.as_json()
    write_json(outputs.verdict / "verdict.json", values)
    evidence = {"verdict": verdict.verdict, "passed": verdict.passed, "findings": values["findings"]}
    return Result(verdict.sentence, evidence, gate=None if verdict.passed else verdict.sentence)


if __name__ == "__main__":
    main(run, "diagnose")
