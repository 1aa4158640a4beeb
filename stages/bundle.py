"""Stage `bundle`: model, labels, predict.py, stored predictions, manifest and model card in one folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.config.base import StageParams
from stages.config.bundle import Bundle
from stages.data.prepared import Prepared
from stages.deployment import bundling
from stages.deployment.card import model_card
from stages.deployment.verifying import check_in_clean_process, verify
from stages.runtime.exits import BadData, GateFailed
from stages.runtime.files import IDENTITY_FILE, read_json
from stages.runtime.stage import Result, main


class Params(StageParams):
    """What the stage reads of params.yaml."""

    bundle: Bundle


@dataclass(frozen=True)
class Inputs:
    """What the stage reads."""

    data: Path = Path("artifacts/prepare_data/data")
    model: Path = Path("artifacts/quantize/model")
    targets: Path = Path("artifacts/profile_model/targets")
    train: Path = Path("artifacts/diagnose/train")
    distill: Path = Path("artifacts/diagnose/distill")
    prune: Path = Path("artifacts/diagnose/prune")


@dataclass(frozen=True)
class Outputs:
    """What the stage leaves."""

    bundle: Path = Path("artifacts/bundle")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    """See the module. Raises `GateFailed` when a target is missed, or the bundle does not check out."""
    targets = _read(inputs.targets / "targets.json")
    if not targets["all_hold"]:
        missed = ", ".join(row["name"] for row in targets["targets"] if not row["holds"])
        raise GateFailed(f"a bundle needs all targets to hold; missed: {missed}; improve the model or loosen them")
    contents = bundling.Contents(
        prepared=Prepared.open(inputs.data),
        model=inputs.model,
        targets=targets,
        verdicts={name: _read(getattr(inputs, name) / "verdict.json") for name in ("train", "distill", "prune")},
        stored_predictions=params.bundle.stored_predictions,
        threads=params.threads,
    )
    identity_file = outputs.bundle / IDENTITY_FILE
    identity = read_json(identity_file) if identity_file.is_file() else None
    decision = _read(inputs.model / "decision.json")
    card = model_card(contents.prepared.info, decision, targets, contents.verdicts, identity)
    bundling.make(outputs.bundle, contents, card)
    return _gate(outputs.bundle, str(decision["chosen"]))


def _gate(folder: Path, number_type: str) -> Result:
    """Reads the finished bundle back, here and in a clean process."""
    try:
        verify(folder)
        check_in_clean_process(folder)
    except BadData as error:
        raise GateFailed(f"the bundle must check out before it is handed out: {error.sentence}") from error
    manifest = read_json(folder / bundling.MANIFEST)
    size_kib = sum(entry["bytes"] for entry in manifest["files"].values()) / 1024
    count = len(manifest["files"])
    return Result(
        summary=f"{number_type} model and {count - 1} files beside it, {size_kib:.0f} KiB; checksums and stored "
        "predictions agree, also in a clean process",
        evidence={"files": count, "size_kib": size_kib},
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError) as error:
        raise BadData(f"{path} cannot be read ({error}); run the stage that made it again") from None


if __name__ == "__main__":
    main(run, "bundle", libraries=("onnx", "onnxruntime"))
