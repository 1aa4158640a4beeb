"""BatchNorm's statistics under accumulation: taken anew at the end, and said in the record."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stages.checkpoints.store import Store
from stages.data.loaders import epoch_order
from stages.data.prepared import Prepared
from stages.training.batchnorm import reestimate
from stages.training.evaluate import evaluate
from stages.training.fit import fit
from tests.unit.training import toy
from tests.unit.training.acting import meta


def test_statistics_are_those_of_the_batches() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    module.add_module("second", nn.BatchNorm1d(3).double())
    module.train()
    module[1].momentum = 0.3
    batches = [torch.randn(8, 5, dtype=torch.float64) for _ in range(6)] + [torch.ones(1, 5, dtype=torch.float64)]
    weights = [parameter.detach().clone() for parameter in module.parameters()]
    reestimate(module, batches)
    with torch.no_grad():
        first = [module[0](batch) for batch in batches[:-1]]  # One sample has no spread: left out.
    mean = torch.stack([one.mean(0) for one in first]).mean(0)
    spread = torch.stack([one.var(0, unbiased=True) for one in first]).mean(0)
    torch.testing.assert_close(module[1].running_mean, mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(module[1].running_var, spread, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(mean, torch.cat(first).mean(0))  # Equal batches: that of all samples.
    assert (module[1].momentum, module.second.momentum) == (0.3, 0.1)
    assert all(part.training for part in module.modules())
    assert all(torch.equal(now, then) for now, then in zip(module.parameters(), weights, strict=True))
    seen = []  # Dropout was off: the second layer saw what evaluation gives, but for the first one's own batch.
    with torch.no_grad():
        for batch, hidden in zip(batches[:-1], first, strict=True):
            normalised = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
            scaled = normalised * module[1].weight + module[1].bias
            seen.append(module[4](scaled.relu()).mean(0))
            assert len(batch) == 8
    torch.testing.assert_close(module.second.running_mean, torch.stack(seen).mean(0), rtol=1e-9, atol=1e-12)


def sorted_by_class(folder: Path) -> Prepared:
    """As a folder per class leaves it: the train split's samples of one class follow each other."""
    prepared = toy.prepare(folder, train=48)
    order = np.argsort(prepared.labels[:48], kind="stable")
    for name in ("samples.npy", "labels.npy"):
        content = np.load(folder / name)
        content[:48] = content[:48][order]
        np.save(folder / name, content)
    return Prepared.open(folder)


@pytest.mark.parametrize("ema", [None, {"decay": 0.9}])
def test_a_training_takes_them_over_shuffled_batches(tmp_path: Path, ema: dict[str, float] | None) -> None:
    prepared = sorted_by_class(tmp_path / "data")
    assert (np.diff(prepared.labels[:48]) >= 0).all()
    job = toy.job(tmp_path, prepared, settings={"reestimate_batchnorm": True, "ema": ema})
    fitted = fit(job)
    order = epoch_order(prepared.indices("train"), 0, 0)
    raw = [torch.from_numpy(prepared.read(order[start : start + 8])) for start in range(0, 48, 8)]
    with torch.no_grad():
        hidden = [job.module[1](job.preprocess(one)) for one in raw]
    layer = job.module[2]
    torch.testing.assert_close(layer.running_mean, torch.cat(hidden).mean(0), rtol=1e-4, atol=1e-5)
    expected = torch.stack([one.var(0, unbiased=True) for one in hidden]).mean(0)
    torch.testing.assert_close(layer.running_var, expected, rtol=1e-4, atol=1e-5)
    whole = torch.cat(hidden).var(0, unbiased=True)
    assert (layer.running_var / whole).mean().item() == pytest.approx(
        1.0, abs=0.1
    )  # No spread between classes is lost.
    assert fitted.val == evaluate(job.module, job.preprocess, prepared, "val", batch_size=4)
    assert not job.module.training


def test_the_record_says_so(tmp_path: Path, prepared: Prepared) -> None:
    for reestimated in (False, True):
        job = toy.job(tmp_path / str(reestimated), prepared, settings={"reestimate_batchnorm": reestimated},
                      store=Store("toy", str(reestimated), "c"))  # fmt: skip
        fit(job)
        assert meta(job)["batchnorm"] == {
            "layers": 1, "samples_per_statistic": 4, "effective_batch": 8, "reestimated": reestimated,
        }  # fmt: skip
    plain = toy.job(tmp_path / "plain", prepared, nn.Linear(6, 3), store=Store("toy", "plain", "c"))
    fit(plain)
    assert meta(plain)["batchnorm"] is None


def test_a_finished_run_that_is_reused_gives_the_same(tmp_path: Path, prepared: Prepared) -> None:
    settings = {"reestimate_batchnorm": True}
    job = toy.job(tmp_path, prepared, settings=settings)
    done = fit(job)
    again = toy.job(tmp_path / "again", prepared, settings=settings)
    reused = fit(again)
    assert reused.reused
    assert toy.result(again) == toy.result(job)
    assert reused.val == done.val
