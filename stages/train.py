"""Trains the teacher: the network of section `model` on the prepared data."""

from dataclasses import asdict, dataclass
from pathlib import Path

from stages.config.base import StageParams, identifying
from stages.config.model import Model
from stages.config.resume import Resume
from stages.config.train import Train
from stages.data.prepared import Prepared
from stages.models import store
from stages.models.counting import count
from stages.models.registry import build
from stages.runtime.files import write_json
from stages.runtime.stage import Result, main
from stages.training.evaluate import Evaluation, evaluate
from stages.training.fit import fit
from stages.training.history import number
from stages.training.setup import open_job


class TrainParams(StageParams):
    """What the stage reads of params.yaml."""

    model: Model
    train: Train
    resume: Resume


@dataclass(frozen=True)
class Inputs:
    """What other stages left."""

    data: Path = Path("artifacts/prepare_data/data")
    ready: Path = Path("artifacts/benchmark_data/done.json")
    decision: Path = Path("artifacts/find_batch_size/decision")


@dataclass(frozen=True)
class Outputs:
    """What this stage leaves."""

    model: Path = Path("artifacts/train/model")
    history: Path = Path("artifacts/train/history")
    metrics: Path = Path("artifacts/train/metrics.json")


def run(params: TrainParams, inputs: Inputs, outputs: Outputs) -> Result:
    """Leaves the weights with the best validation accuracy, the history, and how good they are on train and val."""
    prepared = Prepared.open(inputs.data)
    info = prepared.info
    module = build(params.model, info.shape, len(info.classes))
    job = open_job(
        "train",
        module,
        params.train,
        params={"model": identifying(params.model), "train": identifying(params.train)},
        prepared=prepared,
        decision=inputs.decision,
        history=outputs.history,
        seed=params.seed,
        threads=params.threads,
        across_code=params.resume.across_code,
    )
    job.stop_on_nan = "nan" in params.train.stop_on
    fitted = fit(job)
    counts = count(module, info.shape)
    size = fitted.micro_batch
    on_train = evaluate(module, job.preprocess, prepared, "train", batch_size=size, loader=job.loader)
    store.save(outputs.model, module, store.Spec(params.model.name, params.model.kwargs, info.shape, len(info.classes)))
    store.write_status(outputs.model, fitted.status, fitted.reason, counts, fitted.val.accuracy)
    write_json(
        outputs.metrics,
        {
            **_figures("val", fitted.val),
            **_figures("train", on_train),
            **asdict(counts),
            "best_epoch": fitted.best_epoch,
        },
    )
    done = "trained" if fitted.status == "finished" else f"stopped itself ({fitted.reason})"
    which = f"in epoch {fitted.best_epoch} of {params.train.epochs}" if fitted.best_epoch else "of the starting weights"
    return Result(
        f"{done}: validation accuracy {fitted.val.accuracy:.2%} {which}, "
        f"{counts.params:,} parameters, {counts.macs:,} MACs",
        evidence={
            "status": fitted.status,
            "val_accuracy": number(fitted.val.accuracy),
            "best_epoch": fitted.best_epoch,
            "best_weights": fitted.weights,
        },
        run=fitted.run,
    )


def _figures(split: str, evaluation: Evaluation) -> dict[str, float | str]:
    names = ("accuracy", "loss", "macro_f1")
    return {f"{split}_{name}": number(getattr(evaluation, name)) for name in names}


if __name__ == "__main__":
    main(run, "train", libraries=("torch", "safetensors"))
