"""A small pipeline in a folder: prepared data, a decision, a trained teacher; and the two stages run on it."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages import distill, prune, train
from stages.config.distill import Distill
from stages.config.fit import Fit
from stages.config.model import Model
from stages.config.prune import Prune
from stages.config.resume import Resume
from stages.config.train import Train
from stages.data.prepared import Prepared
from stages.runtime import seeds
from stages.runtime.files import write_json
from stages.runtime.stage import Result
from tests.unit.data.build import prepare, write_npz

ROOT = Path(__file__).parent.parent.parent.parent
CLASSES = 4
FIT = Fit(epochs=6, batch_size=32, lr=0.01)


@dataclass(frozen=True)
class Folder:
    """Where the artifacts of one test lie."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "prepared" / "data"

    @property
    def decision(self) -> Path:
        return self.root / "decision"

    def model(self, stage: str) -> Path:
        return self.root / stage / "model"

    def history(self, stage: str) -> Path:
        return self.root / stage / "history"

    def metrics(self, stage: str) -> Path:
        return self.root / stage / "metrics.json"

    def opened(self) -> Prepared:
        return Prepared.open(self.data)

    def outputs(self, kind: Any, stage: str) -> Any:
        shutil.rmtree(self.root / stage, ignore_errors=True)
        self.model(stage).mkdir(parents=True)
        self.history(stage).mkdir()
        return kind(self.model(stage), self.history(stage), self.metrics(stage))

    def train(self, model: Model) -> Result:
        seeds.apply(0, 1)
        params = train.TrainParams(seed=0, threads=1, model=model, train=Train(**FIT.model_dump()), resume=Resume())
        inputs = train.Inputs(self.data, self.root, self.decision)
        return train.run(params, inputs, self.outputs(train.Outputs, "train"))

    def distill(self, **settings: Any) -> Result:
        seeds.apply(0, 1)
        chosen = {"student": Model(name="mlp", kwargs={"hidden": [16]}), "fit": FIT, "max_drop": 0.1, **settings}
        params = distill.DistillParams(seed=0, threads=1, distill=Distill(**chosen), resume=Resume())
        inputs = distill.Inputs(self.data, self.decision, self.model("train"), self.root)
        return distill.run(params, inputs, self.outputs(distill.Outputs, "distill"))

    def prune(self, student: str = "distill", **settings: Any) -> Result:
        seeds.apply(0, 1)
        chosen = {"round_to": 4, "fit": FIT, "max_drop": 0.2, **settings}
        params = prune.PruneParams(seed=0, threads=1, prune=Prune(**chosen), resume=Resume())
        inputs = prune.Inputs(self.data, self.decision, self.model("train"), self.model(student), self.root)
        return prune.run(params, inputs, self.outputs(prune.Outputs, "prune"))


def make(root: Path) -> Folder:
    """Images of four noisy patterns, prepared; a micro-batch of 16; dvc.yaml, which the checkpoint store reads."""
    random = np.random.default_rng(0)
    labels = np.arange(320) % CLASSES
    patterns = random.integers(0, 256, (CLASSES, 8, 8, 3))
    images = np.clip(0.4 * patterns[labels] + random.normal(80, 45, (320, 8, 8, 3)), 0, 255).astype(np.uint8)
    shutil.copy(ROOT / "dvc.yaml", root / "dvc.yaml")
    prepare(root / "prepared", source="npz", path=write_npz(root / "raw.npz", images=images, labels=labels))
    write_json(root / "decision" / "decision.json", {"micro_batch": 16, "accumulation": 2, "device": None})
    return Folder(root)


def content(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
