"""The whole of params.yaml. Stages do not import this file: an edit of another section must not make them stale."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.config.base import Section
from stages.config.benchmark_data import BenchmarkData
from stages.config.bundle import Bundle
from stages.config.data import Data
from stages.config.diagnose import Diagnose
from stages.config.distill import Distill
from stages.config.export_onnx import ExportOnnx
from stages.config.find_batch_size import FindBatchSize
from stages.config.model import Model
from stages.config.nightly import Nightly
from stages.config.paths import Paths
from stages.config.prepare_data import PrepareData
from stages.config.profile_model import ProfileModel
from stages.config.promote import Promote
from stages.config.prune import Prune
from stages.config.quantize import Quantize
from stages.config.resume import Resume
from stages.config.targets import Targets
from stages.config.train import Train


class Pipeline(Section):
    """params.yaml."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    """Seeds every random generator and the split."""

    threads: Annotated[int, Field(ge=1, le=256)]
    """Threads of PyTorch and ONNX Runtime; part of every fingerprint, since it changes bits."""

    data: Data
    model: Model
    paths: Paths
    targets: Targets
    resume: Resume
    prepare_data: PrepareData
    benchmark_data: BenchmarkData
    find_batch_size: FindBatchSize
    train: Train
    diagnose: Diagnose
    distill: Distill
    prune: Prune
    export_onnx: ExportOnnx
    quantize: Quantize
    profile_model: ProfileModel
    bundle: Bundle
    nightly: Nightly
    promote: Promote

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        micro, batch = self.find_batch_size.fixed_micro_batch, self.train.batch_size
        if micro is not None and batch % micro:
            raise ValueError(
                f"find_batch_size.fixed_micro_batch must divide train.batch_size; {micro} does not divide {batch}"
            )
        return self
