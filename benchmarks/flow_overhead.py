"""What the Prefect flow adds to each stage over the bare command, and what a run costs once.

    python -m benchmarks.flow_overhead
    python -m benchmarks.flow_overhead --quick    one round, two small stages only: under 50 s on two quiet cores

A small pipeline whose stages compute nothing is run again and again, all of it. In each round once stage by stage with
the bare command (`dvc --wait-for-lock repro STAGE`, what a person types), once through the flow in a process of its
own, on one Prefect server that runs all the time; the order changes from round to round. What a stage's task takes
beyond its bare command is the supervisor, its log lines, its state, its progress, table and text in Prefect. A figure
is the median over the rounds of the difference inside a round: a machine that is busy for a while slows both sides.
One round says little on a busy machine: take a full run for a judgement.

A run's process is timed as a whole: what lies outside its stages (starting Python, importing Prefect, asking DVC,
starting the flow, telling the server the last of it) is what a run costs once. The server's own start is in neither.

The last line of output is one JSON object: `seconds_per_stage`, `seconds_per_run`, `noop_s` (the process of a run that
finds nothing to do: of the real pipeline, made with the parameters of `benchmarks.pipeline --quick`; with --quick of
the small one, and as the first run on its server, which is the slowest), `noop_stages` (of how many stages), `bare_s`
and `flow_s` (of a stage, medians), `stages` (of the small pipeline), `rounds`, `load` (before, after), `quick`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pipeline import QUICK, timed, workspace
from flows import dvc, server

ROUNDS, QUICK_ROUNDS = 7, 1
STAGES, QUICK_STAGES = ("one", "two", "three"), 2
NOOPS = 3
EPOCHS = 3

_STAGE = '''\
"""Hands a number on, with a line for each epoch and the metrics of a stage that trains."""
import json
from dataclasses import dataclass
from pathlib import Path
from stages.config.base import StageParams
from stages.runtime.progress import say
from stages.runtime.stage import Result, main

class Params(StageParams):
    pass

@dataclass(frozen=True)
class Inputs:
    before: Path = Path("{before}")

@dataclass(frozen=True)
class Outputs:
    data: Path = Path("artifacts/{name}/data")
    metrics: Path = Path("artifacts/{name}/metrics.json")

def run(params: Params, inputs: Inputs, outputs: Outputs) -> Result:
    for epoch in range(1, {epochs} + 1):
        say(f"{name}: epoch {{epoch}} of {epochs}: loss 0.5")
    (outputs.data / "number.txt").write_text("1")
    outputs.metrics.write_text(json.dumps({{"loss": 0.5, "accuracy": 0.9}}))
    return Result("handed on")

if __name__ == "__main__":
    main(run, "{name}")
'''

_RUN = """\
import json, sys, time
from flows import train_to_deploy as flow

marks, run_stage = [], flow.run_stage

def marked(*arguments, **options):
    marks.append(time.perf_counter())
    try:
        return run_stage(*arguments, **options)
    finally:
        marks.append(time.perf_counter())

flow.run_stage = marked
ended = flow.run_here(None, sys.argv[1] == "force")
print(json.dumps({"stages": len(marks) // 2, "seconds": marks[-1] - marks[0] if marks else 0.0}))
sys.exit(ended.code)
"""


@dataclass(frozen=True)
class Taken:
    """Seconds of one run through the flow."""

    stages: float
    """From the start of the first stage's task to the end of the last one's."""

    process: float


def small(folder: Path, stages: Sequence[str]) -> dict[str, str]:
    """A copy of the project with the small pipeline; returns the environment to run it in."""
    folder.mkdir()
    env = workspace(folder)
    before, pipeline = "raw.txt", ["stages:"]
    (folder / before).write_text("1")
    for name in stages:
        (folder / "stages" / f"{name}.py").write_text(_STAGE.format(name=name, before=before, epochs=EPOCHS))
        outputs, deps = f"artifacts/{name}/data", f"[stages/{name}.py, {before}]"
        pipeline += [
            f"  {name}: {{cmd: python -m stages.{name}, deps: {deps}, params: [seed, threads], outs: [{outputs}],",
            f"    metrics: [artifacts/{name}/metrics.json: {{cache: false}}]}}",
        ]
        before = outputs
    (folder / "dvc.yaml").write_text("\n".join(pipeline) + "\n")
    return env


def bare(folder: Path, env: dict[str, str], stages: Sequence[str], *, anew: bool = True) -> float:
    """Seconds of the bare commands of all stages, each of them stale in the way in which `force` makes it stale."""
    spent = 0.0
    for name in stages:
        line = dvc.command("--wait-for-lock", "repro", *(["--no-run-cache"] if anew else []), name)
        with dvc.to_be_run_again(folder, name):
            began = time.perf_counter()
            done = subprocess.run(line, cwd=folder, env=dvc.environment(env), capture_output=True, text=True)
            spent += time.perf_counter() - began
        _require(done, f"> python -m stages.{name}" in done.stdout)
    return spent


def through_flow(folder: Path, env: dict[str, str], stages: int, *, force: bool) -> Taken:
    """One run of all stages through the flow, in a process of its own, of which `stages` must be run."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "force" if force else ""], cwd=folder, env=env, capture_output=True, text=True
    )
    process = time.perf_counter() - began
    _require(done, done.returncode == 0)
    told = json.loads(done.stdout.splitlines()[-1])
    _require(done, told["stages"] == stages)
    return Taken(told["seconds"], process)


def _require(done: "subprocess.CompletedProcess[str]", held: bool) -> None:
    if done.returncode or not held:
        sys.exit(
            f"{done.args} did not do what is measured (it ended with {done.returncode})\n{done.stdout}{done.stderr}"
        )


def real(folder: Path) -> int:
    """Runs the real pipeline, so that nothing is left to do; the number of its stages."""
    folder.mkdir()
    timed(folder, workspace(folder), "run", *(part for change in QUICK for part in ("--set", change)))
    return len(dvc.plan(folder, print).order)


def measure(folder: Path, quick: bool) -> dict[str, object]:
    """All figures."""
    rounds, stages = (QUICK_ROUNDS, STAGES[:QUICK_STAGES]) if quick else (ROUNDS, STAGES)
    loads, tree, count = [os.getloadavg()[0]], folder / "small", len(stages)
    env = small(tree, stages)
    with ThreadPoolExecutor(1) as pool:  # The server needs some seconds, in which the stages run for the first time.
        first = pool.submit(bare, tree, env, stages, anew=False)
        with server.started(folder / "prefect") as address:
            first.result()
            env |= server.client_environment(folder / "prefect", address)
            noops = [through_flow(tree, env, 0, force=False)]
            bares: list[float] = []
            flows: list[Taken] = []
            for number in range(rounds):
                for side in ("bare", "flow") if number % 2 else ("flow", "bare"):
                    if side == "bare":
                        bares.append(bare(tree, env, stages))
                    else:
                        flows.append(through_flow(tree, env, count, force=True))
                said = f"bare {bares[-1]:.2f} s, flow {flows[-1].stages:.2f} s (its process {flows[-1].process:.2f} s)"
                print(f"round {number + 1} of {rounds}: {said}", flush=True)
            noop_stages = count
            if not quick:
                noop_stages = real(folder / "real")
                noops = [through_flow(folder / "real", env, 0, force=False) for _ in range(NOOPS)]
    differences = [(flow.stages - one) / count for one, flow in zip(bares, flows, strict=True)]
    return {
        "seconds_per_stage": round(statistics.median(differences), 2),
        "seconds_per_run": round(statistics.median(flow.process - flow.stages for flow in flows), 2),
        "noop_s": round(statistics.median(taken.process for taken in noops), 1),
        "noop_stages": noop_stages,
        "bare_s": round(statistics.median(bares) / count, 2),
        "flow_s": round(statistics.median(flow.stages for flow in flows) / count, 2),
        "stages": count,
        "rounds": rounds,
        "load": [round(load, 1) for load in (*loads, os.getloadavg()[0])],
        "quick": quick,
    }


def main() -> None:
    """Runs the benchmark and prints its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a reduced, honest run in under 50 s")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(measure(Path(temporary), quick)))


if __name__ == "__main__":
    main()
