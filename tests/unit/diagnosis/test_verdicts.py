"""Every fault that the recorded columns can show is found; no healthy but tricky run raises an alarm."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from stages.config.diagnose import Diagnose
from stages.diagnosis.history import Floats, History
from stages.diagnosis.verdict import diagnose
from tests.unit.diagnosis.build import CHANCE, Run, cosine, flat, learns, rises

SEEDS = range(4)


def changed(run: Run, change: Callable[[History, np.random.Generator], History]) -> Callable[[int], History]:
    return lambda seed: change(run.history(seed), np.random.default_rng(seed + 100))


def with_loss(history: History, loss: Floats) -> History:
    """The same run with other step losses, and epochs that average them."""
    epochs = len(history.epochs)
    means = loss.reshape(epochs, -1).mean(axis=1)
    return dataclasses.replace(
        history,
        steps=dataclasses.replace(history.steps, loss=loss),
        epochs=dataclasses.replace(history.epochs, train_loss=means),
    )


def with_val(history: History, factor: Floats) -> History:
    return dataclasses.replace(
        history, epochs=dataclasses.replace(history.epochs, val_loss=history.epochs.val_loss * factor)
    )


def hard_batches(history: History, random: np.random.Generator) -> History:
    hard = 1.0 + random.pareto(1.5, len(history.steps))
    hard[:40] = 1.0
    return with_loss(history, history.steps.loss * hard)


def alternating(history: History, random: np.random.Generator) -> History:
    """Two shards of validation data, one harder than the other; the last epoch has either."""
    hard = (np.arange(len(history.epochs)) + random.integers(2)) % 2 == 0
    accuracy = history.epochs.val_accuracy - np.where(hard, 0.06, 0.0)
    epochs = dataclasses.replace(history.epochs, val_accuracy=accuracy, val_macro_f1=accuracy)
    return with_val(dataclasses.replace(history, epochs=epochs), np.where(hard, 3.0, 0.6))


def small_validation(history: History, random: np.random.Generator) -> History:
    accuracy = np.round(history.epochs.val_accuracy * 40) / 40
    epochs = dataclasses.replace(history.epochs, val_accuracy=accuracy, val_macro_f1=accuracy)
    return with_val(dataclasses.replace(history, epochs=epochs), np.exp(random.normal(0, 0.15, len(accuracy))))


def restarts(t: Floats) -> Floats:
    return 0.025 * (1 + np.cos(math.pi * ((t * 4) % 1.0)))


def restarted(history: History, random: np.random.Generator) -> History:
    rate = history.steps.lr / history.steps.lr.max()
    return with_loss(history, history.steps.loss * (1.0 + 1.5 * rate))


def one_cycle(t: Floats) -> Floats:
    return 0.1 * np.where(t < 0.3, 0.04 + 0.96 * t / 0.3, 0.5 * (1 + np.cos(math.pi * (t - 0.3) / 0.7)))


def late_drop(t: Floats) -> Floats:
    return 0.7 / (1 + np.exp(40 * (t - 0.6))) + 0.01


HEALTHY: dict[str, Callable[[int], History]] = {
    "constant sgd": Run().history,
    "adamw": Run(optimizer="adamw", lr=flat(0.001)).history,
    "warm-up and cosine": Run(lr=cosine(), epochs=15, per_epoch=20).history,
    "cosine restarts": changed(Run(lr=restarts), restarted),
    "one cycle with its bump": Run(
        lr=one_cycle,
        loss=lambda t: learns()(t) + 0.3 * np.exp(-(((t - 0.3) / 0.08) ** 2)),
        val_loss=lambda t: learns(0.07)(t) + 0.5 * np.exp(-(((t - 0.3) / 0.08) ** 2)),
    ).history,
    "label smoothing": Run(loss=learns(floor=0.89), val_loss=learns(floor=0.27), noise=0.05).history,
    "validation of 40 samples": changed(Run(), small_validation),
    "dropout: validation better than train": Run(
        loss=learns(floor=0.15), val_loss=learns(0.07, 16), accuracy=lambda t: 0.96 - 0.86 * np.exp(-10 * t)
    ).history,
    "fine-tuning that gains little": Run(
        loss=learns(0.10, start=0.13),
        val_loss=learns(0.12, start=0.14),
        accuracy=rises(0.955, 0.965),
        val_accuracy=rises(0.950, 0.953),
        norm=flat(0.3),
        stage="prune",
        epochs=8,
    ).history,
    "step decay": Run(lr=lambda t: 0.05 * 0.1 ** np.floor(t * 2.999)).history,
    "batch of 4": Run(noise=1.1, per_epoch=300, epochs=10).history,
    "20% label noise": Run(
        loss=learns(0.95),
        val_loss=learns(1.05),
        accuracy=lambda t: 0.81 - 0.7 * np.exp(-14 * t),
        val_accuracy=lambda t: 0.79 - 0.68 * np.exp(-14 * t),
    ).history,
    "late drop": Run(
        classes=2,
        loss=late_drop,
        val_loss=late_drop,
        accuracy=lambda t: 1 - 0.5 / (1 + np.exp(40 * (t - 0.6))),
        val_accuracy=lambda t: 1 - 0.5 / (1 + np.exp(40 * (t - 0.6))),
    ).history,
    "active clipping": Run(clip_norm=0.05).history,
    "very tight clipping with adamw": Run(clip_norm=1e-3, optimizer="adamw", lr=flat(0.001)).history,
    "long flat tail": Run(
        loss=learns(1e-4, 60), val_loss=learns(0.06, 60), norm=learns(1e-4, 60, 2.0), epochs=80
    ).history,
    "hard batches": changed(Run(loss=learns(0.05)), hard_batches),
    "alternating validation shards": changed(Run(), alternating),
    "overconfident, accuracy holds": Run(
        loss=learns(1e-3), val_loss=lambda t: learns(0.07, 20)(t) + 0.15 * t
    ).history,
    "distillation": Run(loss=learns(0.1, start=7.0), stage="distill").history,
    "first epochs slow, batch norm": Run(
        val_loss=lambda t: learns(0.07)(t) + 1.2 * np.exp(-t / 0.02), epochs=15, per_epoch=20
    ).history,
    "unclipped": Run(clip_norm=None).history,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_run_raises_no_alarm(kind: str, seed: int) -> None:
    verdict = diagnose(HEALTHY[kind](seed), Diagnose())
    assert (verdict.verdict, verdict.passed) == ("healthy", True), verdict.sentence
    assert verdict.findings == []


def cut_by_nan(history: History, random: np.random.Generator) -> History:
    loss = history.steps.loss.copy()
    loss[500:] = np.nan
    return dataclasses.replace(
        history,
        status="stopped",
        reason="nan",
        steps=dataclasses.replace(history.steps, loss=loss),
        epochs=dataclasses.replace(
            history.epochs, val_loss=np.where(np.arange(30) > 11, np.nan, history.epochs.val_loss)
        ),
    )


def spiked(lasts: int | None) -> Callable[[History, np.random.Generator], History]:
    def change(history: History, random: np.random.Generator) -> History:
        loss = history.steps.loss.copy()
        after = loss[600 : None if lasts is None else 600 + lasts]
        after[:] = CHANCE * np.exp(random.normal(0, 0.1, len(after)))
        loss[600] = 60.0
        return with_loss(history, loss)

    return change


def swinging(history: History, random: np.random.Generator) -> History:
    up_and_down = np.where(np.arange(len(history.epochs)) % 2, 0.7, -0.7)
    swings = np.exp(up_and_down + random.normal(0, 0.3, len(history.epochs)))
    spread = history.steps.loss * np.repeat(np.sqrt(swings), 40)
    return with_val(with_loss(history, spread), swings)


def same_order(history: History, random: np.random.Generator) -> History:
    place = np.tile(np.exp(random.normal(0, 1.0, 40)), len(history.epochs))
    place[:40] = 1.0
    return with_loss(history, history.steps.loss * place)


GUESSES = {"accuracy": flat(0.1), "val_accuracy": flat(0.105)}
LOW = {"accuracy": lambda t: 0.31 - 0.2 * np.exp(-20 * t), "val_accuracy": lambda t: 0.28 - 0.17 * np.exp(-20 * t)}

FAULTS: dict[str, tuple[str, bool, Callable[[int], History]]] = {
    # Kind: the cause, whether the default gate fails, the run.
    "nan in mid-run": (
        "nan", False,
        changed(Run(), cut_by_nan),
    ),
    "diverged": (
        "diverged", False,
        Run(loss=rises(CHANCE, 40), val_loss=rises(CHANCE, 60), **GUESSES).history,
    ),
    "loss with its sign turned": (
        "diverged", False,
        Run(loss=rises(-0.1, -900, 2), val_loss=rises(3, 900, 2), **GUESSES).history,
    ),
    "exploding": (
        "exploding_gradients", False,
        Run(loss=rises(CHANCE, 9), val_loss=rises(CHANCE, 9), norm=rises(2, 4000, 3), **GUESSES).history,
    ),
    "exploding without a bound": (
        "exploding_gradients", False,
        Run(loss=rises(CHANCE, 9), val_loss=rises(CHANCE, 9), norm=rises(2, 9000, 3), clip_norm=None,
            **GUESSES).history,
    ),
    "vanishing": (
        "vanishing_gradients", False,
        Run(loss=flat(CHANCE), val_loss=flat(CHANCE), norm=learns(1e-7, 30, 1.0), noise=0.02, **GUESSES).history,
    ),
    "dead": (
        "not_learning", False,
        Run(loss=flat(2.305), val_loss=flat(2.304), norm=flat(0.2), noise=0.03, **GUESSES).history,
    ),
    "too small a learning rate": (
        "lr_too_low", False,
        Run(loss=rises(2.32, 2.28), val_loss=rises(2.32, 2.28), noise=0.001,
            val_noise=0.0, lr=flat(1e-6), **GUESSES).history,
    ),
    "slow": (
        "lr_too_low", True,
        Run(loss=rises(2.3, 1.4), val_loss=rises(2.3, 1.4), noise=0.01,
            accuracy=rises(0.1, 0.5), val_accuracy=rises(0.1, 0.5)).history,
    ),
    "oscillating": (
        "oscillating", True,
        changed(Run(loss=learns(0.6), val_loss=learns(1.0), noise=0.1), swinging),
    ),
    "overfitting": (
        "overfitting", False,
        Run(
            loss=learns(1e-4), val_loss=lambda t: learns(0.4, 20)(t) + 1.5 * t,
            val_accuracy=lambda t: 0.9 - 0.8 * np.exp(-20 * t) - 0.12 * t,
        ).history,
    ),
    "random labels": (
        "overfitting", False, Run(loss=learns(0.01, 2), val_loss=rises(CHANCE, 8), val_accuracy=flat(0.1)).history
    ),
    "one hidden unit": (
        "underfitting", False,
        Run(loss=learns(1.52, 20), val_loss=learns(1.7, 20), **LOW).history,
    ),
    "bad batch": (
        "spike", True,
        changed(Run(), spiked(None)),
    ),
    "bad batch, recovered": (
        "spike_recovered", True,
        changed(Run(), spiked(60)),
    ),
    "warm-up without end": (
        "schedule", True,
        Run(lr=rises(0.0, 0.05)).history,
    ),
    "decay per batch": (
        "schedule", True,
        Run(lr=lambda t: 0.05 * 0.9 ** (t * 1200), loss=learns(2.1, 60), val_loss=learns(2.1, 60),
            accuracy=flat(0.6), val_accuracy=flat(0.56)).history,
    ),
    "learning rate jumps": (
        "schedule", False,
        Run(lr=lambda t: np.where(t < 0.5, 0.05, 3.0), loss=lambda t: np.where(t < 0.5, learns()(t), 2.6),
            val_loss=lambda t: np.where(t < 0.5, learns()(t), 3.6), accuracy=lambda t: np.where(t < 0.5, 0.99, 0.1),
            val_accuracy=lambda t: np.where(t < 0.5, 0.98, 0.1)).history,
    ),
    "validation not processed as train": (
        "mismatch", True, Run(loss=learns(0.001, 30), val_loss=lambda t: 0.9 + 0.4 * t, val_accuracy=flat(0.93)).history
    ),
    "softmax twice": (
        "double_softmax", True,
        Run(loss=learns(1.48), val_loss=learns(1.49), noise=0.004, val_noise=0.001,
            accuracy=flat(0.985), val_accuracy=flat(0.975)).history,
    ),
    "batches in the same order": (
        "unshuffled", True,
        changed(Run(), same_order),
    ),
    "sure of wrong answers at the start": (
        "bad_start", True,
        Run(loss=learns(0.01, 20, 900.0)).history,
    ),
    "few classes predicted": (
        "class_collapse", True,
        Run(f1_share=0.5).history,
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_as_the_cause(kind: str, seed: int) -> None:
    cause, passes, run = FAULTS[kind]
    verdict = diagnose(run(seed), Diagnose())
    assert verdict.verdict == cause, verdict.sentence
    assert verdict.passed == passes, verdict.sentence
    finding = verdict.findings[0]
    assert finding.evidence
    assert finding.steps is not None
    assert 0 < finding.confidence <= 1
    assert "nan" not in str(finding.evidence) or cause == "nan"


def test_the_gate_follows_fail_on() -> None:
    slow = FAULTS["slow"][2](0)
    assert diagnose(slow, Diagnose()).passed
    assert not diagnose(slow, Diagnose(fail_on=["lr_too_low"])).passed
    nothing = diagnose(FAULTS["overfitting"][2](0), Diagnose(fail_on=[]))
    assert nothing.passed
    assert "passes with a warning" in nothing.sentence


def test_a_stopped_training_fails_whatever_fail_on_says() -> None:
    stopped = FAULTS["nan in mid-run"][2](0)
    verdict = diagnose(stopped, Diagnose(fail_on=[]))
    assert not verdict.passed
    assert verdict.findings[0].evidence["first_step"] == 501
    silent = dataclasses.replace(Run().history(0), status="stopped", reason="rollbacks used up")
    assert diagnose(silent, Diagnose()).verdict == "nan"
    assert "rollbacks used up" in diagnose(silent, Diagnose()).sentence


@pytest.mark.parametrize(("column", "value"), [("loss", np.inf), ("grad_norm", np.nan), ("loss", -np.inf)])
def test_one_value_that_is_not_finite_is_found_at_its_step(column: str, value: float) -> None:
    history = Run().history(0)
    values = getattr(history.steps, column).copy()
    values[777] = value
    history = dataclasses.replace(history, steps=dataclasses.replace(history.steps, **{column: values}))
    verdict = diagnose(history, Diagnose())
    assert (verdict.verdict, verdict.findings[0].steps) == ("nan", (778, 778))


def test_nan_at_the_first_step_is_no_matter_of_the_learning_rate() -> None:
    history = Run().history(0)
    loss = np.full_like(history.steps.loss, np.nan)
    verdict = diagnose(dataclasses.replace(history, steps=dataclasses.replace(history.steps, loss=loss)), Diagnose())
    assert "very first step" in verdict.sentence
    assert verdict.prescription == []


@pytest.mark.parametrize("epochs", [1, 2])
def test_too_short_passes_with_a_warning(epochs: int) -> None:
    verdict = diagnose(Run(epochs=epochs).history(0), Diagnose())
    assert (verdict.verdict, verdict.passed) == ("too_short", True)
    assert verdict.checked["not_learning"] == "not applicable"
    assert verdict.checked["nan"] == "clear"


def test_nan_shows_in_a_run_that_is_too_short() -> None:
    history = Run(epochs=1).history(0)
    loss = history.steps.loss.copy()
    loss[5:] = np.nan
    history = dataclasses.replace(history, steps=dataclasses.replace(history.steps, loss=loss))
    assert diagnose(history, Diagnose()).verdict == "nan"


@pytest.mark.parametrize(
    ("stage", "key"), [("train", "train.lr"), ("distill", "distill.fit.lr"), ("prune", "prune.fit.lr")]
)
def test_the_prescription_names_the_keys_of_the_stage(stage: str, key: str) -> None:
    run = Run(loss=rises(CHANCE, 40), val_loss=rises(CHANCE, 60), stage=stage, settings={key: 0.1}, **GUESSES)
    verdict = diagnose(run.history(0), Diagnose())
    change = verdict.prescription[0]
    assert (change.key, change.current, change.proposed) == (key, 0.1, 0.01)
    assert f"{key}: 0.1 -> 0.01" in verdict.sentence


def test_too_tight_a_bound_is_the_prescription_of_a_clipped_sgd() -> None:
    run = Run(loss=rises(2.32, 2.30), val_loss=flat(2.31), noise=0.004, norm=flat(2.0), clip_norm=1e-4, **GUESSES)
    verdict = diagnose(run.history(0), Diagnose())
    (change,) = verdict.prescription
    assert (change.key, change.current) == ("train.clip_norm", 1e-4)
    assert change.proposed == pytest.approx(2.0, rel=0.1)


def test_overfitting_whose_accuracy_holds_is_a_warning_only() -> None:
    run = Run(
        loss=learns(1e-4),
        val_loss=lambda t: learns(0.3, 20)(t) + 0.8 * t,
        val_accuracy=lambda t: 0.84 - 0.7 * np.exp(-20 * t),
    )
    verdict = diagnose(run.history(0), Diagnose())
    assert (verdict.verdict, verdict.findings[0].severity, verdict.passed) == ("overfitting", "warning", True)


def test_a_round_of_pruning_may_raise_the_loss() -> None:
    history = dataclasses.replace(changed(Run(stage="prune"), spiked(60))(0), restarts=(1, 601))
    assert diagnose(history, Diagnose()).verdict == "healthy"


def test_two_classes_know_their_own_chance() -> None:
    half = flat(0.5)
    run = Run(classes=2, loss=flat(0.69), val_loss=flat(0.69), accuracy=half, val_accuracy=half, noise=0.02)
    verdict = diagnose(run.history(0), Diagnose())
    assert verdict.verdict == "not_learning"
    assert verdict.findings[0].evidence["ln_classes"] == pytest.approx(math.log(2), rel=1e-5)


def test_a_regression_is_judged_by_its_own_loss() -> None:
    empty = np.empty(0)
    good = Run(loss=learns(0.3, start=4.0), val_loss=learns(0.35, start=4.0)).history(0)
    flat_run = Run(loss=flat(1.0), val_loss=flat(1.0), noise=0.05).history(0)
    for history, expected in ((good, "healthy"), (flat_run, "not_learning")):
        epochs = dataclasses.replace(history.epochs, train_accuracy=empty, val_accuracy=empty, val_macro_f1=empty)
        regression = dataclasses.replace(history, task="regression", classes=None, epochs=epochs)
        assert diagnose(regression, Diagnose()).verdict == expected


def test_a_skipped_stage_is_skipped() -> None:
    history = dataclasses.replace(Run(epochs=1).history(0), status="skipped", reason="distill.enabled is false")
    verdict = diagnose(history, Diagnose())
    assert (verdict.verdict, verdict.passed) == ("skipped", True)
    assert "distill.enabled is false" in verdict.sentence


def test_the_verdict_is_the_same_every_time() -> None:
    for _, _, run in FAULTS.values():
        assert diagnose(run(1), Diagnose()).as_json() == diagnose(run(1), Diagnose()).as_json()
