"""Profiles saved model files side by side: scores on the test split, size, latency, throughput."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.config.profile_model import ProfileModel
from stages.config.targets import Targets
from stages.data.prepared import Prepared
from stages.deployment import evaluation, graphs
from stages.deployment.evaluation import Scores
from stages.deployment.latency import Latency, latency
from stages.runtime.exits import BadData
from stages.runtime.files import read_json, sha256_file

FINAL = "final"
"""Name of what `quantize` handed on, INT8 or float; the other names are those of `export_onnx`."""


@dataclass(frozen=True)
class Variant:
    """A saved model file of the pipeline."""

    name: str
    path: Path
    number_type: str
    """`float` or `int8`."""
    params: int
    macs: int
    """Multiply-accumulates for one sample."""


@dataclass(frozen=True)
class Profile:
    """What was found out about one variant."""

    variant: Variant
    scores: Scores
    latency: Latency
    """At batch 1."""
    throughput_per_s: float
    """Samples per second at `profile_model.throughput_batch`."""

    def metrics(self) -> dict[str, Any]:
        """What is the same in every run."""
        return {
            "number_type": self.variant.number_type,
            "accuracy": self.scores.accuracy,
            "macro_f1": self.scores.macro_f1,
            "size_bytes": graphs.size_bytes(self.variant.path),
            "params": self.variant.params,
            "macs": self.variant.macs,
        }

    def measured(self) -> dict[str, float]:
        """What varies from run to run."""
        return {
            "p50_ms": self.latency.p50_ms,
            "p95_ms": self.latency.p95_ms,
            "throughput_per_s": self.throughput_per_s,
        }


def variants(exported: Path, final: Path) -> list[Variant]:
    """The teacher in float first, the final model last; models that a skipped stage handed on are left out.

    `exported` is the artifact of `export_onnx`, `final` that of `quantize`. Raises `BadData`.
    """
    try:
        rows: list[dict[str, Any]] = read_json(exported / "variants.json")
        found = [
            Variant(row["name"], exported / row["file"], "float", row["params"], row["macs"])
            for row in rows
            if not row["skipped"]
        ]
        source = next(row for row in rows if row["file"] == "model.onnx")
        chosen = str(read_json(final / "decision.json")["chosen"])
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise BadData(f"{exported} or {final} is damaged ({error!r}); run export_onnx and quantize again") from None
    return [*found, Variant(FINAL, final / "model.onnx", chosen, source["params"], source["macs"])]


def profile(chosen: Sequence[Variant], prepared: Prepared, settings: ProfileModel, threads: int) -> dict[str, Profile]:
    """Scores and times every variant; a file that occurs twice (float handed on) is measured once."""
    digests = {variant.name: sha256_file(variant.path) for variant in chosen}
    unique: dict[str, Variant] = {}
    for variant in chosen:
        unique.setdefault(digests[variant.name], variant)
    scores = {digest: evaluation.score(variant.path, prepared, "test", threads) for digest, variant in unique.items()}
    paths = {digest: variant.path for digest, variant in unique.items()}
    test = prepared.indices("test")
    one = prepared.read(test[:1])
    many = prepared.read(np.resize(test, settings.throughput_batch))
    single = latency(paths, one, threads, settings.repeats, settings.warmup)
    batched = latency(paths, many, threads, settings.throughput_repeats, 1)
    return {
        variant.name: Profile(
            variant,
            scores[digests[variant.name]],
            single[digests[variant.name]],
            1000.0 * len(many) / batched[digests[variant.name]].p50_ms,
        )
        for variant in chosen
    }


@dataclass(frozen=True)
class Target:
    """A bound on the final model, and whether it holds."""

    name: str
    bound: float
    got: float
    holds: bool
    repeatable: bool
    """False for a measured time: it is left out of the artifact."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for targets.json, without what varies from run to run."""
        values: dict[str, Any] = {"name": self.name, "bound": self.bound, "holds": self.holds}
        return {**values, "got": self.got} if self.repeatable else values

    def sentence(self) -> str:
        """For the gate's message."""
        return f"targets.{self.name} is {self.bound:g}, the final model has {self.got:.4g}"


def check_targets(targets: Targets, final: Profile) -> list[Target]:
    """Each bound that is set, against the final model."""
    size_kib = graphs.size_bytes(final.variant.path) / 1024
    found = []
    if targets.min_accuracy is not None:
        accuracy = final.scores.accuracy
        found.append(Target("min_accuracy", targets.min_accuracy, accuracy, accuracy >= targets.min_accuracy, True))
    if targets.max_p95_latency_ms is not None:
        bound, p95_ms = targets.max_p95_latency_ms, final.latency.p95_ms
        found.append(Target("max_p95_latency_ms", bound, p95_ms, p95_ms <= bound, False))
    if targets.max_size_kib is not None:
        found.append(Target("max_size_kib", targets.max_size_kib, size_kib, size_kib <= targets.max_size_kib, True))
    return found


def table(profiles: Mapping[str, Profile]) -> list[str]:
    """One line per variant for the person who watches."""
    lines = [f"{'variant':<10} {'type':<6} {'accuracy':>8} {'KiB':>9} {'p50 ms':>8} {'p95 ms':>8} {'per s':>9}"]
    for name, found in profiles.items():
        size_kib = graphs.size_bytes(found.variant.path) / 1024
        lines.append(
            f"{name:<10} {found.variant.number_type:<6} {found.scores.accuracy:>8.4f} {size_kib:>9.1f} "
            f"{found.latency.p50_ms:>8.3f} {found.latency.p95_ms:>8.3f} {found.throughput_per_s:>9.0f}"
        )
    return lines
