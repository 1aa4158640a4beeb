"""How long a first run of the whole pipeline takes, stage by stage, and a second one that has nothing to do.

    python -m benchmarks.pipeline            the default parameters
    python -m benchmarks.pipeline --quick    a small network, few epochs, no pruning: in under 50 s

The last line of output is one JSON object: `seconds` per stage (as the stage itself measured), `total_s` (the whole
command, DVC included), `noop_s` (the same command again), `quick`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHIPPED = ("stages", "flows", "params.yaml", "dvc.yaml", ".dvc", ".dvcignore", ".gitignore")
QUICK = (
    "model.name=mlp", "model.kwargs={hidden: [64, 64]}", "train.epochs=4", "find_batch_size.fixed_micro_batch=64",
    "distill.student.name=mlp", "distill.student.kwargs={hidden: [32]}", "distill.fit.epochs=4", "distill.max_drop=0.5",
    "prune.enabled=false", "quantize.repeats=20", "profile_model.repeats=20",
    "targets.min_accuracy=0.5", "diagnose.fail_on=[nan]",
)  # fmt: skip


def workspace(folder: Path) -> dict[str, str]:
    """Copies the project into a git repository of its own; returns the environment to run it in."""
    ignored = shutil.ignore_patterns("__pycache__", "cache", "tmp", "config.local")
    for name in SHIPPED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, folder / name, **({"ignore": ignored} if source.is_dir() else {}))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHIPWAY_")}
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=b", "-c", "user.email=b@b", "commit", "-qm", "b"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return env


def timed(folder: Path, env: dict[str, str], *arguments: str) -> float:
    """Seconds of one `shipway` command."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "flows.cli", *arguments], cwd=folder, env=env, check=True)
    return time.perf_counter() - started


def main() -> None:
    """Runs the benchmark and prints its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a reduced, honest run in under 50 s")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        env = workspace(folder)
        changes = [part for change in (QUICK if quick else ()) for part in ("--set", change)]
        total = timed(folder, env, "run", *changes)
        noop = timed(folder, env, "run")
        last = [json.loads(path.read_text()) for path in (folder / ".shipway/last").iterdir()]
    seconds = {entry["stage"]: round(entry["seconds"], 1) for entry in last}
    print(json.dumps({"seconds": seconds, "total_s": round(total, 1), "noop_s": round(noop, 1), "quick": quick}))


if __name__ == "__main__":
    main()
