"""What is recorded: it changes no weight, and its values are those that can be worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stages.checkpoints.store import Store
from stages.data.loaders import epoch_order
from stages.data.prepared import Prepared
from stages.training.evaluate import evaluate
from stages.training.fit import fit
from stages.training.job import Job
from stages.training.timings import EPOCH_TIMINGS, STEP_TIMINGS
from tests.unit.training import toy
from tests.unit.training.acting import rows


def make(folder: Path, prepared: Prepared, module: nn.Module | None = None, **settings: Any) -> Job:
    return toy.job(folder, prepared, module, settings=settings, store=Store("toy", folder.name, "c"))


def test_recording_changes_no_weight(tmp_path: Path, prepared: Prepared) -> None:
    results, optimizers = [], []
    for number, settings in enumerate(
        [
            {"layers_every_steps": None, "log_every_steps": 50},
            {"layers_every_steps": 1, "log_every_steps": 1},
            {"layers_every_steps": 1, "log_every_steps": 50},
            {"layers_every_steps": 5, "log_every_steps": 4},
        ]
    ):
        job = make(tmp_path / str(number), prepared, **settings)
        fit(job)
        result = toy.result(job)
        layers = result.pop("layers.jsonl")
        every = settings["layers_every_steps"]
        assert layers.count("\n") == (0 if every is None else 24 // every)
        results.append(result)
        saved = job.store.latest()
        assert saved is not None
        optimizers.append(saved.payload["optimizer"]["state"])
    assert results[0] == results[1] == results[2] == results[3]
    for other in optimizers[1:]:
        for key, state in optimizers[0].items():
            assert all(torch.equal(other[key][name], value) for name, value in state.items())


def plain() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, toy.CLASSES, bias=False)).double()


def test_every_value_of_steps_and_layers_by_hand(tmp_path: Path, prepared: Prepared) -> None:
    """A loop of whole windows in float64, with SGD and clipping: row by row."""
    settings = {
        "epochs": 2, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.5, "schedule": "constant",
        "clip_norm": 0.6, "layers_every_steps": 1,
    }  # fmt: skip
    job = make(tmp_path / "a", prepared, plain(), **settings)
    job.preprocess.double()
    fit(job)
    module = plain()
    steps, layers, clipped = rows(job, "steps.jsonl"), rows(job, "layers.jsonl"), 0
    number = 0
    for epoch in (1, 2):
        order = epoch_order(prepared.indices("train"), 0, epoch)
        loss_sum, confusion = 0.0, torch.zeros(3, 3, dtype=torch.int64)
        for start in range(0, 46, 8):
            chosen = order[start : start + 8]
            labels = torch.from_numpy(prepared.labels[chosen])
            logits = module((torch.from_numpy(prepared.read(chosen)).double() - 0.5) / 0.5)
            loss = F.cross_entropy(logits, labels)
            module.zero_grad()
            torch.autograd.backward(loss)
            grads = {name: [p.grad for p in part.parameters()] for name, part in module.named_children()}
            norm = torch.cat([one.flatten() for group in grads.values() for one in group]).norm().item()
            row, layer = steps[number], layers[number]
            number += 1
            assert (row["step"], row["epoch"], row["lr"], row["skipped"]) == (number, epoch, 0.5, False)
            assert (layer["step"], layer["epoch"], set(layer["layers"])) == (number, epoch, {"0", "2"})
            assert (row["loss"], row["grad_norm"]) == pytest.approx((loss.item(), norm), rel=1e-8)
            assert row["clipped"] is (norm > 0.6)
            clipped += row["clipped"]
            scale = min(1.0, 0.6 / (norm + 1e-6))  # As torch clips.
            for name in ("0", "2"):
                weights = list(module.get_submodule(name).parameters())
                held = torch.cat([one.detach().flatten() for one in weights]).norm().item()
                grad = torch.cat([one.flatten() for one in grads[name]]).norm().item()
                found = layer["layers"][name]
                assert (found["grad_norm"], found["weight_norm"]) == pytest.approx((grad, held), rel=1e-5)
                assert found["update_ratio"] == pytest.approx(0.5 * scale * grad / held, rel=1e-4)
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.5 * scale * parameter.grad
            loss_sum += loss.item() * len(chosen)
            for actual, predicted in zip(labels, logits.argmax(1), strict=True):
                confusion[actual, predicted] += 1
        row = rows(job, "epochs.jsonl")[epoch - 1]
        assert row["train_loss"] == pytest.approx(loss_sum / 46, rel=1e-8)
        assert row["train_confusion"] == confusion.tolist()
        assert row["train_accuracy"] == pytest.approx(confusion.trace().item() / 46)
        f1 = [2 * confusion[c, c] / (confusion[c].sum() + confusion[:, c].sum()) for c in range(3)]
        assert row["train_macro_f1"] == pytest.approx((sum(f1) / 3).item())
    assert 0 < clipped < number  # Both kinds came.


def test_every_column_of_an_epoch(tmp_path: Path, prepared: Prepared) -> None:
    """The validation's values are those that `evaluate` gives for the checkpoint of that epoch."""
    job = make(tmp_path / "a", prepared, epochs=3, ema={"decay": 0.9})
    fit(job)
    found = rows(job, "epochs.jsonl")
    assert set(found[0]) == {
        "epoch", "step", "train_loss", "train_accuracy", "train_macro_f1", "train_confusion", "val_loss",
        "val_accuracy", "val_macro_f1", "val_confusion", "ema_val_loss", "ema_val_accuracy",
        "ema_val_macro_f1", "ema_val_confusion",
    }  # fmt: skip
    for epoch in (1, 2, 3):
        payload, row = job.store.load(6 * epoch).payload, found[epoch - 1]
        for prefix, state in (("val", payload["module"]), ("ema_val", payload["average"]["module"])):
            module = toy.network()
            module.load_state_dict(state)
            score = evaluate(module, job.preprocess, prepared, "val", batch_size=4)
            assert row[f"{prefix}_loss"] == pytest.approx(score.loss, rel=1e-8)
            assert row[f"{prefix}_accuracy"] == pytest.approx(score.accuracy)
            assert row[f"{prefix}_macro_f1"] == pytest.approx(score.macro_f1)
            assert row[f"{prefix}_confusion"] == [list(counts) for counts in score.confusion]
            assert sum(map(sum, row[f"{prefix}_confusion"])) == 20


def test_timings_lie_beside_the_history(tmp_path: Path, prepared: Prepared) -> None:
    job = make(tmp_path / "a", prepared, log_every_steps=4, save_every_epochs=4)
    fit(job)
    assert not list(job.history.glob("*timings*"))
    steps, epochs = (
        [json.loads(line) for line in (job.store.folder / name).read_text().splitlines()]
        for name in (STEP_TIMINGS, EPOCH_TIMINGS)
    )
    assert [row["step"] for row in steps] == [4, 6, 10, 12, 16, 18, 22, 24]
    assert [row["epoch"] for row in epochs] == [1, 2, 3, 4]
    assert set(steps[0]) == {"step", "step_ms", "data_wait_ms", "samples_per_s", "cpu_percent", "rss_mib"}
    for row in steps:
        assert 0.0 <= row["data_wait_ms"] <= row["step_ms"]
        assert row["rss_mib"] > 10.0
    for row, samples in zip(steps, (32, 14) * 4, strict=True):
        passed_s = row["step_ms"] / 1000 * (4 if samples == 32 else 2)
        assert row["samples_per_s"] == pytest.approx(samples / passed_s, rel=0.01)
    assert all(row["seconds"] > 0.0 for row in epochs)
