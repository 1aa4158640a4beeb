"""Four loops that train the same network with the same options on the same batches: ours, a bare one, two peers.

Options: AdamW (fused, no decay on biases and norms), gradient clipping, warm-up and cosine per step, batches by one
index operation on arrays in memory, losses kept on the device. All call the same loss function once a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.turns import Turns
from stages.checkpoints.store import Store
from stages.config.fit import Fit
from stages.data.loaders import epoch_order
from stages.data.prepared import Prepared
from stages.models.preprocess import Preprocess
from stages.training import optimizers
from stages.training.fit import Job, Loss, fit
from stages.training.schedule import learning_rate

CPU = torch.device("cpu")


@dataclass
class Case:
    """What is trained, for one epoch."""

    name: str
    prepared: Prepared
    module: nn.Module
    """The starting weights; every loop trains a copy."""

    batch_size: int
    total_steps: int
    samples: Tensor = field(init=False)
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        everything = np.arange(len(self.prepared.labels))
        self.samples = torch.from_numpy(self.prepared.read(everything))
        self.labels = torch.from_numpy(self.prepared.labels)

    @property
    def settings(self) -> Fit:
        """The defaults, for one epoch."""
        return Fit(epochs=1, batch_size=self.batch_size)

    def preprocess(self) -> Preprocess:
        """The normalisation, which is part of every loop's step."""
        info = self.prepared.info
        return Preprocess(info.mean, info.std, info.scale, info.shape)

    def parts(self) -> tuple[Tensor, ...]:
        """The indices of each batch, int64 (batch_size,), in our loop's order."""
        order = epoch_order(self.prepared.indices("train"), 0, 1)
        return torch.split(torch.from_numpy(order), self.batch_size)


def loss_of(turns: Turns) -> Loss:
    """Cross entropy, as every loop computes it; it also tells that a step is under way."""

    def loss(logits: Tensor, labels: Tensor, _raw: Tensor) -> Tensor:
        turns.step()
        return F.cross_entropy(logits, labels)

    return loss


Loop = Callable[[Case, nn.Module, Loss, Path], None]
"""Trains the module for one epoch; what it writes lies in the folder."""


def ours(case: Case, module: nn.Module, loss_function: Loss, folder: Path) -> None:
    """`fit` as a stage calls it, with all its records."""
    store = Store("overhead", "f" * 64, "c" * 64, reuse_finished=False)
    store.clear()
    fit(
        Job(
            name="overhead",
            module=module,
            preprocess=case.preprocess(),
            prepared=case.prepared,
            settings=case.settings,
            micro_batch=case.batch_size,
            seed=0,
            store=store,
            history=folder / "history",
            loss=loss_function,
            device=CPU,
        )
    )


def bare(case: Case, module: nn.Module, loss_function: Loss, _folder: Path) -> None:
    """What one would write by hand, for speed; numpy takes half of torch's time to index."""
    settings, preprocess, losses = case.settings, case.preprocess(), []
    samples, all_labels = case.samples.numpy(), case.labels.numpy()
    optimizer = optimizers.optimizer(module, settings, case.total_steps)
    rate = learning_rate(settings, case.total_steps)
    parameters = list(module.parameters())
    module.train()
    for step, part in enumerate([part.numpy() for part in case.parts()]):
        raw, labels = torch.from_numpy(samples[part]), torch.from_numpy(all_labels[part])
        loss = loss_function(module(preprocess(raw)), labels, raw)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())


def _scheduled(case: Case, module: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    optimizer = optimizers.optimizer(module, case.settings, case.total_steps)
    rate, peak = learning_rate(case.settings, case.total_steps), case.settings.lr
    last = case.total_steps - 1  # LambdaLR also asks for the step after the last.
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(min(step, last)) / peak)


def _loader(case: Case) -> DataLoader[tuple[Tensor, ...]]:
    """One index operation a batch, in process: far faster than the sample by sample of a plain DataLoader."""
    return DataLoader(TensorDataset(case.samples, case.labels), sampler=_Parts(case.parts()), batch_size=None)


class _Parts(torch.utils.data.Sampler[Tensor]):
    def __init__(self, parts: Sequence[Tensor]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def accelerate(case: Case, module: nn.Module, loss_function: Loss, _folder: Path) -> None:
    """Accelerate's documented loop; without trackers, checkpoints or a progress bar.

    The loader is left as it is: Accelerate's own does not take one that makes whole batches, and would cost more.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    settings, preprocess, losses = case.settings, case.preprocess(), []
    network, optimizer, schedule = accelerator.prepare(module, *_scheduled(case, module))
    network.train()
    for raw, labels in _loader(case):
        with accelerator.accumulate(network):
            loss = loss_function(network(preprocess(raw)), labels, raw)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(network.parameters(), settings.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.detach())


def lightning(case: Case, module: nn.Module, loss_function: Loss, folder: Path) -> None:
    """Lightning's Trainer in its fastest mode: `barebones`, without logger, checkpoints, bars and checks."""
    import lightning.pytorch as pl

    preprocess, losses = case.preprocess(), []

    class Network(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            raw, labels = batch
            loss = loss_function(self.network(preprocess(raw)), labels, raw)
            losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> dict[str, object]:
            optimizer, schedule = _scheduled(case, module)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=case.settings.clip_norm,
        barebones=True,
        default_root_dir=folder,
    )
    trainer.fit(Network().train(), _loader(case))


LOOPS: dict[str, Loop] = {"ours": ours, "bare": bare, "lightning": lightning, "accelerate": accelerate}
