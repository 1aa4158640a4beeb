"""Distils the teacher into a smaller student."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stages.compression.distillation.losses import DistillationLoss
from stages.compression.distillation.teacher import Teacher
from stages.compression.handing_on import hand_on
from stages.config.base import StageParams, identifying
from stages.config.distill import Distill
from stages.config.resume import Resume
from stages.data.prepared import Prepared
from stages.models import store
from stages.models.counting import Counts, count
from stages.models.registry import build
from stages.runtime import seeds
from stages.runtime.exits import BadData
from stages.runtime.files import digest, write_json
from stages.runtime.stage import Result, main
from stages.training.evaluate import Evaluation, evaluate
from stages.training.fit import Fitted, fit
from stages.training.history import number
from stages.training.setup import open_job

ROUNDING = 1e-9
"""A drop of just the bound is allowed: 0.98 - 0.96 is a little more than 0.02 in floating point."""


class DistillParams(StageParams):
    """What the stage reads of params.yaml."""

    distill: Distill
    resume: Resume


@dataclass(frozen=True)
class Inputs:
    """What other stages left."""

    data: Path = Path("artifacts/prepare_data/data")
    decision: Path = Path("artifacts/find_batch_size/decision")
    teacher: Path = Path("artifacts/train/model")
    verdict: Path = Path("artifacts/diagnose/train")  # Its gate has passed: it only keeps the order.


@dataclass(frozen=True)
class Outputs:
    """What this stage leaves."""

    model: Path = Path("artifacts/distill/model")
    history: Path = Path("artifacts/distill/history")
    metrics: Path = Path("artifacts/distill/metrics.json")


@dataclass(frozen=True)
class Compared:
    """Teacher and student side by side, both on the validation split."""

    teacher: Evaluation
    teacher_counts: Counts
    student: Evaluation
    student_counts: Counts

    @property
    def drop(self) -> float:
        """How far the student lies below the teacher."""
        return self.teacher.accuracy - self.student.accuracy


def run(params: DistillParams, inputs: Inputs, outputs: Outputs) -> Result:
    """Leaves the student's weights, its history and how it compares with the teacher; or hands the teacher on."""
    settings = params.distill
    if not settings.enabled:
        return _skip(inputs, outputs)
    prepared = Prepared.open(inputs.data)
    info = prepared.info
    teacher, spec = store.load(inputs.teacher)
    if (spec.input_shape, spec.classes) != (info.shape, len(info.classes)):
        raise BadData(
            f"{inputs.teacher} takes {spec.input_shape} and knows {spec.classes} classes, but {inputs.data} has "
            f"{info.shape} and {len(info.classes)}; run `shipway run train` again"
        )
    torch.manual_seed(seeds.derive(params.seed, "student"))
    student = build(settings.student, info.shape, len(info.classes))
    job = open_job(
        "distill",
        student,
        settings.fit,
        params={"distill": identifying(settings)},
        prepared=prepared,
        decision=inputs.decision,
        history=outputs.history,
        seed=params.seed,
        threads=params.threads,
        across_code=params.resume.across_code,
        inputs={"teacher": digest(inputs.teacher, with_identity=False)},
    )
    if settings.alpha > 0.0:
        asked = Teacher(teacher, job.preprocess, prepared, job.loader)
        job.loss = DistillationLoss(asked, settings.temperature, settings.alpha, settings.fit.label_smoothing)
    fitted = fit(job)
    teacher.to(job.device)
    size = fitted.micro_batch
    of_teacher = evaluate(teacher, job.preprocess, prepared, "val", batch_size=size, loader=job.loader)
    compared = Compared(of_teacher, count(teacher, info.shape), fitted.val, count(student, info.shape))
    name, kwargs = settings.student.name, settings.student.kwargs
    store.save(outputs.model, student, store.Spec(name, kwargs, info.shape, len(info.classes)))
    store.write_status(outputs.model, fitted.status, fitted.reason, compared.student_counts, fitted.val.accuracy)
    write_json(outputs.metrics, _metrics(compared, fitted))
    return _result(settings, fitted, compared)


def _skip(inputs: Inputs, outputs: Outputs) -> Result:
    reason = "distill.enabled is false: the teacher is handed on unchanged"
    counts, accuracy = hand_on(inputs.teacher, outputs.model, outputs.history, reason)
    write_json(outputs.metrics, {"val_accuracy": number(accuracy), **asdict(counts)})
    return Result(f"skipped: {reason}", evidence={"status": "skipped", "val_accuracy": number(accuracy)})


def _metrics(compared: Compared, fitted: Fitted) -> dict[str, float | str | int]:
    student, teacher = compared.student, compared.teacher
    return {
        "val_accuracy": number(student.accuracy),
        "val_loss": number(student.loss),
        "val_macro_f1": number(student.macro_f1),
        "teacher_val_accuracy": number(teacher.accuracy),
        "drop": number(compared.drop),
        **asdict(compared.student_counts),
        "teacher_params": compared.teacher_counts.params,
        "teacher_macs": compared.teacher_counts.macs,
        "best_epoch": fitted.best_epoch,
    }


def _result(settings: Distill, fitted: Fitted, compared: Compared) -> Result:
    ours, theirs = compared.student_counts, compared.teacher_counts
    figures = (
        f"student {compared.student.accuracy:.2%} on validation, teacher {compared.teacher.accuracy:.2%}; "
        f"parameters {theirs.params:,} -> {ours.params:,} ({ours.params / theirs.params:.2f}x), "
        f"MACs {theirs.macs:,} -> {ours.macs:,} ({ours.macs / theirs.macs:.2f}x)"
    )
    if ours.params >= theirs.params:
        figures += "; warning: the student is no smaller than the teacher: choose a smaller distill.student"
    done = "distilled" if fitted.status == "finished" else f"stopped itself ({fitted.reason})"
    return Result(
        f"{done}: {figures}",
        evidence={
            "status": fitted.status,
            "val_accuracy": number(compared.student.accuracy),
            "teacher_val_accuracy": number(compared.teacher.accuracy),
            "drop": number(compared.drop),
            "max_drop": settings.max_drop,
        },
        gate=_gate(settings, fitted, compared),
        run=fitted.run,
    )


def _gate(settings: Distill, fitted: Fitted, compared: Compared) -> str | None:
    """Why the student is refused. A training that stopped itself is left to `diagnose@distill`, which knows why."""
    if fitted.status != "finished" or compared.drop <= settings.max_drop + ROUNDING:
        return None
    return (
        f"the student's validation accuracy must lie at most {settings.max_drop:.2%} points below the teacher's, it is "
        f"{compared.student.accuracy:.2%} against {compared.teacher.accuracy:.2%} ({compared.drop:.2%} points); train "
        "longer (distill.fit.epochs), choose a larger distill.student, or allow more (distill.max_drop)"
    )


if __name__ == "__main__":
    main(run, "distill", libraries=("torch", "safetensors"))
