"""Stage `prepare_data`: raw data -> checked samples, splits, normalisation, content hash."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.config.base import StageParams
from stages.config.data import Data
from stages.config.prepare_data import PrepareData
from stages.data.bad_samples import IN_TEST, BadSamples
from stages.data.coverage import check_coverage, check_samples, count_classes
from stages.data.intake import Intake, take_arrays, take_files
from stages.data.npy import save_npy
from stages.data.prepared import SPLITS, Indices, Info
from stages.data.sources.base import FileSource, Source
from stages.data.sources.registry import open_source
from stages.data.splits import Splitter, content_hash, count_duplicates, leaks
from stages.runtime.files import canonical_json, write_json
from stages.runtime.stage import Result, main


class Params(StageParams):
    """What the stage reads of params.yaml."""

    data: Data
    prepare_data: PrepareData


@dataclass(frozen=True)
class Inputs:
    """Nothing that another stage made; the raw data lies at `data.path`."""


@dataclass(frozen=True)
class Outputs:
    """What the stage leaves."""

    data: Path = Path("artifacts/prepare_data/data")
    metrics: Path = Path("artifacts/prepare_data/metrics.json")


def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:  # noqa: ARG001 - the stages' common signature
    """Prepares the data. Raises `BadData` for unusable data, `BadParams` for a fault of the user's own factory."""
    settings = params.prepare_data
    splitter = Splitter(params.seed, settings.val_share, settings.test_share, settings.calibration_share)
    source = open_source(params.data, params.seed, params.threads)
    bad = BadSamples(params.data.on_bad_sample)
    intake = _take_in(source, outputs.data, bad, splitter, params.threads)
    for row in np.flatnonzero(leaks(intake.digests, intake.official_test)):
        bad.add(IN_TEST, f"sample {row}", "the same content is in the official test set")
    bad.settle()
    check_samples(intake.labels, intake.classes, bad.counts)
    splits = splitter.split(intake.digests, intake.official_test)
    counts = count_classes(splits, intake.labels, len(intake.classes))
    check_coverage(counts, intake.classes, settings.min_per_class)
    info = _info(params.data, intake, splits, counts, bad.counts)
    _write(outputs, info, intake, splits)
    return Result(_summary(info), {"splits": dict(info.splits), "classes": len(info.classes)})


def _take_in(source: Source, folder: Path, bad: BadSamples, splitter: Splitter, threads: int) -> Intake:
    if not isinstance(source, FileSource):
        return take_arrays(source, folder / "samples.npy", bad)

    def is_train(digest: bytes) -> bool:
        one = np.frombuffer(digest, dtype=np.uint8).reshape(1, -1)
        return len(splitter.split(one, np.zeros(1, dtype=bool))["train"]) == 1

    return take_files(source, bad, is_train, threads)


def _info(
    data: Data, intake: Intake, splits: dict[str, Indices], counts: dict[str, list[int]], dropped: dict[str, int]
) -> Info:
    resize = None if data.resize is None else (data.resize[0], data.resize[1])
    form = {
        "kind": "array" if intake.files is None else "files",
        "shape": list(intake.shape),
        "dtype": intake.dtype,
        "resize": resize,
        "grayscale": data.grayscale,
    }
    parts: list[bytes | npt.NDArray[Any]] = [
        canonical_json(form).encode(),
        intake.digests,
        intake.labels,
        *(splits[name] for name in SPLITS),
    ]
    mean, std = intake.moments(splits["train"])
    return Info(
        kind="array" if intake.files is None else "files",
        hash=content_hash(parts),
        shape=intake.shape,
        dtype=intake.dtype,
        classes=intake.classes,
        mean=mean,
        std=std,
        scale=255.0 if intake.dtype == "uint8" else 1.0,
        splits={name: len(splits[name]) for name in SPLITS},
        counts=counts,
        dropped=dropped,
        duplicates=count_duplicates(intake.digests, intake.labels, intake.official_test),
        root=None if intake.files is None else data.path,
        resize=resize,
        grayscale=data.grayscale,
    )


def _write(outputs: Outputs, info: Info, intake: Intake, splits: dict[str, Indices]) -> None:
    write_json(outputs.data / "info.json", info.to_json())
    save_npy(outputs.data / "labels.npy", intake.labels)
    for name, rows in splits.items():
        save_npy(outputs.data / f"{name}.npy", rows)
    if intake.files is not None:
        write_json(outputs.data / "files.json", [asdict(file) for file in intake.files])
    write_json(
        outputs.metrics,
        {
            "samples": dict(info.splits),
            "classes": len(info.classes),
            "dropped": sum(info.dropped.values()),
            "duplicates": dict(info.duplicates),
        },
    )


def _summary(info: Info) -> str:
    sizes = ", ".join(f"{info.splits[name]} {name}" for name in ("train", "val", "test"))
    notes = [f"{sizes}, {info.splits['calibration']} of train for calibration", f"{len(info.classes)} classes"]
    if info.dropped:
        notes.append(f"bad samples dropped: {sum(info.dropped.values())}")
    if info.duplicates["copies"]:
        notes.append(f"{info.duplicates['copies']} exact copies ({info.duplicates['conflicting']} with another label)")
    return "; ".join(notes)


if __name__ == "__main__":
    main(run, "prepare_data", libraries=("pillow",))
