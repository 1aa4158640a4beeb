"""The loop: learns, keeps the best, clips, stops itself on NaN, blames the network, records what it did."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.checkpoints.fingerprint import module_hash
from stages.checkpoints.store import Store
from stages.data.prepared import Prepared
from stages.runtime.exits import BadParams, DiskFault
from stages.training.evaluate import Evaluation, evaluate
from stages.training.fit import fit
from stages.training.outcome import is_better
from tests.unit.training import toy


def rows(folder: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "history" / name).read_text().splitlines()]


def nan_from(step: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    calls = 0

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        poison = float("nan") if calls > 2 * (step - 1) else 1.0  # Two micro-batches a step.
        return F.cross_entropy(logits, labels) * poison

    return loss


def test_learns_and_holds_the_best_weights(tmp_path: Path, prepared: Prepared) -> None:
    job = toy.job(tmp_path, prepared, settings={"epochs": 12, "lr": 0.03})
    fitted = fit(job)
    assert fitted.status == "finished"
    assert fitted.val.accuracy >= 0.8
    epochs = rows(tmp_path, "epochs.jsonl")
    assert fitted.val.accuracy == pytest.approx(max(row["val_accuracy"] for row in epochs))
    assert epochs[fitted.best_epoch - 1]["val_loss"] == pytest.approx(fitted.val.loss)
    again = evaluate(job.module, job.preprocess, prepared, "val", batch_size=job.micro_batch)
    assert again == fitted.val
    assert not job.module.training


def test_history_has_the_documented_columns(tmp_path: Path, prepared: Prepared) -> None:
    fit(toy.job(tmp_path, prepared))
    steps, epochs = rows(tmp_path, "steps.jsonl"), rows(tmp_path, "epochs.jsonl")
    assert [row["step"] for row in steps] == list(range(1, 25))
    assert set(steps[0]) == {"step", "epoch", "lr", "loss", "grad_norm", "clipped", "skipped"}
    assert [(row["epoch"], row["step"]) for row in epochs] == [(1, 6), (2, 12), (3, 18), (4, 24)]
    meta = json.loads((tmp_path / "history" / "meta.json").read_text())
    assert meta["steps_per_epoch"] == 6
    assert meta["train_samples"] == 46
    assert meta["status"] == "finished"
    curves = (tmp_path / "history" / "curves.csv").read_text().splitlines()
    assert curves[0] == "epoch,step,train_loss,train_accuracy,val_loss,val_accuracy,val_macro_f1"
    assert len(curves) == 5


def test_equal_runs_give_equal_bits_whatever_only_accompanies(tmp_path: Path, prepared: Prepared) -> None:
    results = []
    for number, settings in enumerate([{}, {"log_every_steps": 1}, {"save_every_epochs": 3, "log_every_steps": 7}]):
        job = toy.job(tmp_path / str(number), prepared, settings=settings, store=Store("toy", str(number), "c"))
        fit(job)
        results.append(toy.result(job))
    assert results[0] == results[1] == results[2]


def test_clipping_bounds_the_update(tmp_path: Path, prepared: Prepared) -> None:
    settings = {"epochs": 1, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": 0.01, "lr": 1.0}
    settings["warmup_share"] = 0.0
    job = toy.job(tmp_path, toy.prepare(tmp_path / "one", train=8), settings=settings)
    before = [parameter.detach().clone() for parameter in job.module.parameters()]
    fit(job)
    moved = torch.stack([(p - b).norm() for p, b in zip(job.module.parameters(), before, strict=True)]).norm().item()
    assert moved == pytest.approx(0.01, rel=1e-3)
    assert rows(tmp_path, "steps.jsonl")[0]["clipped"] is True
    assert rows(tmp_path, "steps.jsonl")[0]["grad_norm"] > 0.01


def test_label_smoothing_changes_the_loss_and_not_the_validation(tmp_path: Path, prepared: Prepared) -> None:
    found = []
    for smoothing in (0.0, 0.2):
        folder = tmp_path / str(smoothing)
        store = Store("toy", str(smoothing), "c")
        job = toy.job(folder, prepared, settings={"epochs": 1, "label_smoothing": smoothing, "lr": 1e-9}, store=store)
        fit(job)
        found.append(rows(folder, "epochs.jsonl")[0])
    assert found[0]["train_loss"] != found[1]["train_loss"]
    assert found[0]["val_loss"] == pytest.approx(found[1]["val_loss"], rel=1e-4)


@pytest.mark.parametrize("log_every_steps", [1, 4, 50])
def test_nan_stops_with_the_best_weights_and_the_history(
    tmp_path: Path, prepared: Prepared, log_every_steps: int
) -> None:
    good = toy.job(tmp_path / "good", prepared, store=Store("toy", "good", "c"), loss=nan_from(10**6))
    fit(good)
    store = Store("toy", "bad", "c")
    settings = {"log_every_steps": log_every_steps}
    job = toy.job(tmp_path, prepared, settings=settings, store=store, loss=nan_from(15))
    fitted = fit(job)
    assert fitted.status == "stopped"
    assert "step 15" in fitted.reason
    assert fitted.best_epoch in (1, 2)
    assert all(torch.isfinite(tensor).all() for tensor in job.module.state_dict().values())
    steps = rows(tmp_path, "steps.jsonl")
    assert steps[:14] == rows(tmp_path / "good", "steps.jsonl")[:14]
    assert [row["loss"] for row in steps[14:]] == ["nan"]
    assert rows(tmp_path, "epochs.jsonl") == rows(tmp_path / "good", "epochs.jsonl")[:2]
    assert json.loads((tmp_path / "history" / "meta.json").read_text())["status"] == "stopped"


def test_nan_in_the_first_epoch_leaves_the_starting_weights(tmp_path: Path, prepared: Prepared) -> None:
    job = toy.job(tmp_path, prepared, loss=nan_from(1))
    before = module_hash(job.module)
    fitted = fit(job)
    assert (fitted.status, fitted.best_epoch) == ("stopped", 0)
    assert module_hash(job.module) == before
    assert fitted.val == evaluate(job.module, job.preprocess, prepared, "val", batch_size=4)


def test_nan_goes_on_where_stopping_is_off_and_is_never_the_best(tmp_path: Path, prepared: Prepared) -> None:
    job = toy.job(tmp_path, prepared, loss=nan_from(15), stop_on_nan=False)
    fitted = fit(job)
    assert (fitted.status, len(rows(tmp_path, "steps.jsonl"))) == ("finished", 24)
    assert fitted.best_epoch in (1, 2)
    assert all(torch.isfinite(tensor).all() for tensor in job.module.state_dict().values())


def test_better_is_accuracy_then_loss_and_never_nan() -> None:
    def scored(accuracy: float, loss: float) -> Evaluation:
        return Evaluation(loss, accuracy, 0.0, ())

    assert is_better(scored(0.5, 1.0), None)
    assert is_better(scored(0.6, 2.0), scored(0.5, 1.0))
    assert is_better(scored(0.5, 0.9), scored(0.5, 1.0))
    assert not is_better(scored(0.5, 1.0), scored(0.5, 1.0))
    assert not is_better(scored(0.9, float("nan")), scored(0.5, 1.0))
    assert not is_better(scored(0.9, float("inf")), None)


class Failing(nn.Module):
    """Works in evaluation, not in training."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.error = error

    def forward(self, rows: Tensor) -> Tensor:
        if self.training:
            raise self.error
        return self.fc(rows)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("Expected more than 1 value per channel"), "ValueError: Expected more than 1 value"),
        (torch.OutOfMemoryError("no memory"), "do not fit into the memory"),
    ],
)
def test_a_failing_network_is_one_clear_sentence(
    tmp_path: Path, prepared: Prepared, error: Exception, said: str
) -> None:
    with pytest.raises(BadParams, match=said):
        fit(toy.job(tmp_path, prepared, Failing(error)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"schedule": "cosine_restarts", "cycles": 25}, "cycles must be at most the 24 steps"),
        ({"ema": {"start_step": 24}}, "ema.start_step must be below the 24 steps"),
        ({"optimizer": "adam_then_sgd", "switch_share": 0.999}, "none of the 24 steps"),
        ({"optimizer": "adam_then_sgd", "switch_share": 0.001}, "none of the 24 steps"),
        ({"clip": False}, "recovery.clip_after_steps must be at most the 24 steps"),
        ({"reestimate_batchnorm": True}, "the network has no BatchNorm"),
    ],
)
def test_what_would_do_nothing_here_is_refused(
    tmp_path: Path, prepared: Prepared, settings: dict[str, object], said: str
) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, toy.CLASSES))
    with pytest.raises(BadParams, match=said):
        fit(toy.job(tmp_path, prepared, plain, settings=settings))


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), FileNotFoundError("x"), DiskFault("full")])
def test_a_fault_of_the_system_is_not_the_network_s(tmp_path: Path, prepared: Prepared, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        fit(toy.job(tmp_path, prepared, Failing(error)))
    assert caught.value is error


def test_a_fault_of_the_loader_is_not_the_network_s(
    tmp_path: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the validation split breaks down."""
    monkeypatch.setitem(prepared._splits, "val", prepared.indices("val") + 10**6)
    with pytest.raises(IndexError):
        fit(toy.job(tmp_path, prepared))


def test_micro_batch_must_divide(tmp_path: Path, prepared: Prepared) -> None:
    with pytest.raises(BadParams, match="micro-batch 3 must divide batch_size 8"):
        fit(toy.job(tmp_path, prepared, micro_batch=3))


def test_the_loss_sees_the_raw_batch(tmp_path: Path) -> None:
    prepared = toy.prepare(tmp_path / "images", shape=(4, 4, 1), train=8)
    seen = []

    def loss(logits: Tensor, labels: Tensor, raw: Tensor) -> Tensor:
        seen.append((raw.dtype, tuple(raw.shape)))
        return F.cross_entropy(logits, labels)

    fit(toy.job(tmp_path, prepared, toy.network(16), settings={"epochs": 1}, loss=loss))
    assert seen == [(torch.uint8, (4, 4, 4, 1))] * 2
