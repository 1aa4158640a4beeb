"""Prunes the student: whole channels go, shapes get really smaller, and fine-tuning wins the accuracy back."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from stages.compression.distillation.losses import DistillationLoss
from stages.compression.distillation.teacher import Teacher
from stages.compression.handing_on import hand_on
from stages.compression.pruning.candidates import IS_OUTPUT
from stages.compression.pruning.outcome import Bounds, Outcome, Unpruned, decide, unreachable
from stages.compression.pruning.rounds import FineTune, Round, prune_in_rounds
from stages.compression.pruning.search import Rules, shrink, summary
from stages.config.base import StageParams, identifying
from stages.config.fit import Fit
from stages.config.prune import Prune
from stages.config.resume import Resume
from stages.data.loaders import loader_settings
from stages.data.prepared import Prepared
from stages.models import store
from stages.models.counting import count
from stages.models.preprocess import Preprocess
from stages.runtime.files import digest, write_json
from stages.runtime.stage import Result, main
from stages.training.evaluate import evaluate
from stages.training.fit import Fitted, Loss, fit
from stages.training.history import number
from stages.training.setup import open_job


class PruneParams(StageParams):
    """What the stage reads of params.yaml."""

    prune: Prune
    resume: Resume


@dataclass(frozen=True)
class Inputs:
    """What other stages left."""

    data: Path = Path("artifacts/prepare_data/data")
    decision: Path = Path("artifacts/find_batch_size/decision")
    teacher: Path = Path("artifacts/train/model")
    student: Path = Path("artifacts/distill/model")
    verdict: Path = Path("artifacts/diagnose/distill")  # Its gate has passed: it only keeps the order.


@dataclass(frozen=True)
class Outputs:
    """What this stage leaves."""

    model: Path = Path("artifacts/prune/model")
    history: Path = Path("artifacts/prune/history")
    metrics: Path = Path("artifacts/prune/metrics.json")


def run(params: PruneParams, inputs: Inputs, outputs: Outputs) -> Result:
    """Leaves the pruned model and the history of its fine-tuning; or hands the student on and says why."""
    settings = params.prune
    if not settings.enabled:
        return _left_alone(inputs, outputs, "prune.enabled is false: the student is handed on unchanged", gate=None)
    prepared = Prepared.open(inputs.data)
    info = prepared.info
    student, spec = store.load(inputs.student)
    preprocess = Preprocess(info.mean, info.std, info.scale, info.shape)
    before = Unpruned(count(student, info.shape), evaluate(student, preprocess, prepared, "val").accuracy)
    bounds = Bounds(settings.macs_ratio, settings.max_drop, settings.on_miss)
    rules = Rules(settings.importance, settings.scope, settings.round_to)
    target = settings.macs_ratio * before.counts.macs
    nearest = shrink(student, info.shape, target, rules, settings.time_limit_s)
    if nearest.reason and (settings.on_miss == "fail" or not nearest.kept):
        sentence = unreachable(before.counts, nearest.counts, nearest.reason, bounds)
        gate = sentence if settings.on_miss == "fail" else None
        return _left_alone(inputs, outputs, nearest.reason, gate)
    rounds = prune_in_rounds(
        student,
        before.counts,
        info.shape,
        max(target, nearest.counts.macs),
        rules,
        settings.time_limit_s,
        settings.iterations,
        settings.fit,
        _fine_tuning(params, inputs, prepared, preprocess),
        outputs.history,
    )
    outcome = decide(before, rounds, bounds)
    if outcome.chosen is None:
        return _left_alone(inputs, outputs, outcome.reason, gate=None)
    spared = {layer: why for layer, why in nearest.spared.items() if why != IS_OUTPUT}
    return _leave(settings, outputs, spec, before, rounds, outcome, outcome.chosen, spared)


def _fine_tuning(params: PruneParams, inputs: Inputs, prepared: Prepared, preprocess: nn.Module) -> FineTune:
    """How one round's model is fine-tuned: with a checkpoint store of its own, and the teacher's soft labels."""
    settings = params.prune
    loss = _loss(settings, inputs, prepared, preprocess)
    entered = {"teacher": digest(inputs.teacher, with_identity=False)} if loss is not None else {}

    def fine_tune(turn: int, module: nn.Module, fit_settings: Fit, history: Path) -> Fitted:
        job = open_job(
            "prune",
            module,
            fit_settings,
            params={"prune": identifying(settings)},
            prepared=prepared,
            decision=inputs.decision,
            history=history,
            seed=params.seed,
            threads=params.threads,
            across_code=params.resume.across_code,
            inputs={**entered, "round": str(turn)},
        )
        job.name, job.loss = f"prune round {turn}", loss
        return fit(job)

    return fine_tune


def _loss(settings: Prune, inputs: Inputs, prepared: Prepared, preprocess: nn.Module) -> Loss | None:
    """Soft labels where there is a teacher other than the model itself; None: the labels alone."""
    distilled = store.read_status(inputs.student)["status"] != "skipped"
    if settings.alpha == 0.0 or not distilled:
        return None
    teacher, _ = store.load(inputs.teacher)
    asked = Teacher(teacher, preprocess, prepared, loader_settings(prepared))
    return DistillationLoss(asked, settings.temperature, settings.alpha, settings.fit.label_smoothing)


def _left_alone(inputs: Inputs, outputs: Outputs, reason: str, gate: str | None) -> Result:
    counts, accuracy = hand_on(inputs.student, outputs.model, outputs.history, reason)
    write_json(outputs.metrics, {"val_accuracy": number(accuracy), **asdict(counts), "macs_ratio": 1.0})
    evidence = {"status": "skipped", "reason": reason, "val_accuracy": number(accuracy)}
    return Result(f"skipped: {reason}", evidence=dict(evidence), gate=gate)


def _leave(
    settings: Prune,
    outputs: Outputs,
    spec: store.Spec,
    before: Unpruned,
    rounds: Sequence[Round],
    outcome: Outcome,
    chosen: Round,
    spared: Mapping[str, str],
) -> Result:
    after, val, fitted = chosen.pruned.counts, chosen.fitted.val, rounds[-1].fitted
    ratio = after.macs / before.counts.macs
    store.save(outputs.model, chosen.pruned.module, spec)
    reason = outcome.reason + (f"; left alone: {summary(spared)}" if spared else "")
    store.write_status(outputs.model, fitted.status, reason, after, val.accuracy)
    write_json(
        outputs.metrics,
        {
            "val_accuracy": number(val.accuracy),
            "val_loss": number(val.loss),
            "val_macro_f1": number(val.macro_f1),
            "unpruned_val_accuracy": number(before.accuracy),
            "drop": number(before.accuracy - val.accuracy),
            **asdict(after),
            "unpruned_params": before.counts.params,
            "unpruned_macs": before.counts.macs,
            "macs_ratio": number(ratio),
            "rounds": len(rounds),
        },
    )
    done = "pruned" if fitted.status == "finished" else f"stopped itself ({fitted.reason})"
    return Result(
        f"{done}: MACs {_short(before.counts.macs)} -> {_short(after.macs)} ({ratio:.2f}x), parameters "
        f"{_short(before.counts.params)} -> {_short(after.params)} ({after.params / before.counts.params:.2f}x), "
        f"validation {before.accuracy:.2%} -> {val.accuracy:.2%}" + (f"; {outcome.reason}" if outcome.missed else ""),
        evidence={
            "status": fitted.status,
            "macs_ratio": number(ratio),
            "target": settings.macs_ratio,
            "val_accuracy": number(val.accuracy),
            "drop": number(before.accuracy - val.accuracy),
            "max_drop": settings.max_drop,
            "widths": [{name: list(pair) for name, pair in each.pruned.kept.items()} for each in rounds],
            "spared": dict(spared),
        },
        gate=outcome.gate,
        run={f"round {number_}": each.fitted.run for number_, each in enumerate(rounds, 1)},
    )


def _short(value: int) -> str:
    """1234 -> 1.2K, 1234567 -> 1.2M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if value >= size:
            return f"{value / size:.1f}{letter}"
    return str(value)


if __name__ == "__main__":
    main(run, "prune", libraries=("torch", "torch-pruning", "safetensors"))
