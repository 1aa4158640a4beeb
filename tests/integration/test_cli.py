"""The command line on a small pipeline with real DVC: exit codes, clear messages, nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Workspace, make_workspace
from tests.tiny import begin, make_second_stale, make_tiny, until_gone, until_sleeping

pytestmark = pytest.mark.integration


def ended(workspace: Workspace, *arguments: str, code: int, **extra: str) -> str:
    """Runs `shipway` and expects this exit code, no traceback, and one line of ours; returns all that it said."""
    result = workspace.shipway(*arguments, check=False, **extra)
    said = result.stdout + result.stderr
    assert result.returncode == code, said
    if code != 70:
        assert "Traceback" not in said
    return said


# What is up to date


def test_nothing_to_do_and_the_table_is_still_shown(tiny: Workspace) -> None:
    lock = tiny.read("dvc.lock")
    said = ended(tiny, "run", code=0)
    assert "nothing to do: all 4 stages are up to date\nTHE TABLE" in said
    assert tiny.read("dvc.lock") == lock
    assert "nothing to do: third and the 3 before it are up to date" in ended(tiny, "run", "third", code=0)


def test_a_run_imports_neither_torch_nor_prefect(tiny: Workspace) -> None:
    script = "import sys; from flows import cli; code = cli._end(sys.argv[1:]); print(code, *sorted(sys.modules))"
    for arguments in (["--help"], ["run"]):
        code, *modules = tiny.python("-c", script, *arguments).stdout.splitlines()[-1].split()
        assert code == "0"
        assert not {"torch", "prefect", "onnxruntime", "matplotlib"} & set(modules)


def test_set_runs_what_became_stale_and_keeps_comments(tiny: Workspace) -> None:
    before = tiny.read("params.yaml").decode()
    said = ended(tiny, "run", "--set", "train.lr=0.01", code=0)
    assert "params.yaml: train.lr: 0.003 -> 0.01" in said
    assert tiny.read("params.yaml").decode() == before.replace("  lr: 0.003\n", "  lr: 0.01\n", 1)
    assert tiny.read("artifacts/third/joined.txt") == b"raw 0.01raw 0.01"


def test_force_runs_what_is_up_to_date(tiny: Workspace) -> None:
    lock = tiny.read("dvc.lock")
    said = ended(tiny, "run", "first", "--force", code=0)
    assert "Running stage 'first'" in said
    assert "Running stage 'second@a'" not in said
    assert tiny.read("dvc.lock") == lock


def test_baseline_switches_the_optimisations_off(tiny: Workspace) -> None:
    said = ended(tiny, "run", "--baseline", code=0)
    assert "baseline: distill, prune and quantize are off" in said
    for section in ("distill", "prune", "quantize"):
        assert f"params.yaml: {section}.enabled: True -> False" in said
    assert tiny.read("params.yaml").decode().count("enabled: false") == 3


# How a stage ends is how the run ends


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("GateFailed", 3, "second@b: a gate failed (exit 3): the sentence of GateFailed"),
        ("crash", 70, "a bug of Shipway, please report it: RuntimeError: unforeseen"),
        ("kill", 75, "second@b was killed by signal 9"),
    ],
)
def test_the_stages_own_exit_code_and_sentence(tiny: Workspace, end: str, code: int, words: str) -> None:
    make_second_stale(tiny)
    lock = tiny.read("dvc.lock")
    said = ended(tiny, "run", "second@b", code=code, TINY_END=end)
    assert words in said
    assert tiny.read("dvc.lock") == lock
    assert "THE TABLE" not in said


# Mistakes: one clear line, the right code, nothing changed


def test_an_unknown_stage_is_refused_with_the_nearest_name(tiny: Workspace) -> None:
    before = tiny.read("params.yaml")
    said = ended(tiny, "run", "thrid", "--set", "train.lr=0.5", code=64)
    assert "no stage is named 'thrid'; did you mean 'third'? stages: first, second@a, second@b, third" in said
    assert tiny.read("params.yaml") == before


def test_every_fault_of_set_is_named_at_once_and_nothing_is_written(tiny: Workspace) -> None:
    before = tiny.read("params.yaml")
    said = ended(tiny, "run", "--set", "train.lrr=1", "--set", "train.lr=-1", code=64)
    assert "train.lrr: unknown key; did you mean 'lr'?" in said
    assert "train.lr: input should be greater than 0; got -1" in said
    assert "must read key=value" in ended(tiny, "run", "--set", "train.lr", code=64)
    assert tiny.read("params.yaml") == before


def test_bad_params_are_refused_before_dvc_deletes_anything(tiny: Workspace) -> None:
    path = tiny.root / "params.yaml"
    path.write_text(path.read_text().replace("epochs: 15", "epochs: 0", 1).replace("seed: 0", "seed: x", 1))
    said = ended(tiny, "run", code=64)
    assert "train.epochs" in said
    assert "seed" in said
    assert tiny.read("artifacts/third/joined.txt") == b"raw 0.003raw 0.003"


def test_a_key_that_dvc_reads_may_not_be_left_out(tiny: Workspace) -> None:
    path = tiny.root / "params.yaml"
    path.write_text(path.read_text().replace("  batch_size: 64\n", "", 1))
    said = ended(tiny, "run", code=64)
    assert "train.batch_size: required in params.yaml, since dvc.yaml reads it; its default is 64" in said
    assert tiny.read("artifacts/third/joined.txt") == b"raw 0.003raw 0.003"


def test_a_key_of_dvc_yaml_that_no_file_holds(tiny: Workspace) -> None:
    path = tiny.root / "dvc.yaml"
    pipeline = path.read_text()
    path.write_text(pipeline.replace("train.lr]", "train.lrr]"))
    assert "Parameters 'train.lrr' are missing" in ended(tiny, "run", code=64)
    path.write_text(pipeline.replace("raw.txt", "'${data.pth}'"))
    assert "Could not find 'data.pth'" in ended(tiny, "run", code=64)


def test_paths_that_begin_with_a_dash(tiny: Workspace) -> None:
    (tiny.root / "-folder").mkdir()
    assert "arguments: ['--json', '--', '-folder']" in ended(tiny, "show", "--json", "--", "-folder", code=0)
    for command in (["verify", "--", "-folder"], ["predict", "--", "-folder", "-x.png"]):
        said = ended(tiny, *command, code=65)
        assert "-folder" in said
        assert "usage" not in said


def test_a_part_that_is_killed_is_one_line_and_75(tiny: Workspace) -> None:
    (tiny.root / "killed").touch()
    assert "was killed by signal 9" in ended(tiny, "show", "killed", code=75)


def test_a_file_where_the_artifacts_folder_should_be(tiny: Workspace) -> None:
    shutil.rmtree(tiny.root / "artifacts")
    (tiny.root / "artifacts").write_text("in the way")
    said = ended(tiny, "run", code=74)
    assert "artifacts must be a folder, but a file is in its place; move it away" in said
    assert (tiny.root / "artifacts").read_text() == "in the way"


def test_a_full_disk_is_found_before_anything_is_deleted(tiny: Workspace) -> None:
    shutil.rmtree(tiny.root / "artifacts/third")
    command = f'ulimit -f 8; exec "{sys.executable}" -m flows.cli run'
    result = tiny.run("/bin/sh", "-c", command, check=False)
    assert result.returncode == 74, result.stderr
    assert "File too large; free space" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tiny.root.glob("**/.probe.*"))


def test_outside_a_repository_and_in_a_subfolder(tiny: Workspace, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = tiny.env | {"PYTHONPATH": str(tiny.root)}
    for folder, words in ((elsewhere, "is no Shipway repository"), (tiny.root / "stages", f"cd {tiny.root}")):
        result = subprocess.run(
            [sys.executable, "-m", "flows.cli", "run"], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert result.returncode == 64
        assert words in result.stderr
        assert "Traceback" not in result.stderr


def test_faults_of_dvcs_own_files(tiny: Workspace) -> None:
    (tiny.root / "raw.txt").unlink()
    assert "raw.txt" in ended(tiny, "run", code=65)
    (tiny.root / "raw.txt").write_text("raw")
    pipeline = tiny.read("dvc.yaml").decode()
    (tiny.root / "dvc.yaml").write_text(pipeline.replace("deps:", "dpes:", 1))
    said = ended(tiny, "run", code=64)
    assert "dvc.yaml" in said
    assert "dpes" in said
    (tiny.root / "dvc.yaml").write_text(pipeline)
    shutil.rmtree(tiny.root / ".dvc")
    assert "no DVC repository here" in ended(tiny, "run", code=64)


def test_mistakes_of_usage(tiny: Workspace) -> None:
    assert "No such option: --bogus" in ended(tiny, "run", "--bogus", code=64)
    assert "did you mean" in ended(tiny, "runn", code=64).lower()
    assert "nowhere does not exist" in ended(tiny, "verify", "nowhere", code=64)


def test_a_downloaded_archive_without_git_runs(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path, git=False)
    make_tiny(workspace.root)
    assert "THE TABLE" in ended(workspace, "run", code=0)
    assert "no_scm = true" in workspace.read(".dvc/config.local").decode().lower()
    assert "nothing to do" in ended(workspace, "run", code=0)


# Stopping, and two at once


def test_ctrl_c_saves_ends_with_75_and_leaves_nothing(tiny: Workspace) -> None:
    make_second_stale(tiny)
    with begin(tiny, "flows.cli", "run", TINY_END="sleep") as process:
        stage = until_sleeping(tiny)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # A second one changes nothing.
        said = process.communicate(timeout=30)[0]
    assert process.returncode == 75, said
    assert "stopped on request; run again to go on" in said
    assert "Traceback" not in said
    assert (tiny.root / "saved.txt").exists()
    until_gone(stage)
    assert ended(tiny, "run", code=0)


def test_kill_9_of_the_command_stops_the_stage_after_a_save(tiny: Workspace) -> None:
    make_second_stale(tiny)
    with begin(tiny, "flows.cli", "run", TINY_END="sleep") as process:
        stage = until_sleeping(tiny)
        process.kill()
        until_gone(stage)
    assert (tiny.root / "saved.txt").exists()
    assert ended(tiny, "run", code=0)  # The lock of the working tree is free again.


def test_a_stage_that_was_killed_is_one_to_resume(tiny: Workspace) -> None:
    make_second_stale(tiny)
    assert "nothing to resume" in ended(tiny, "resume", code=64)
    ended(tiny, "run", code=75, TINY_END="kill")
    assert "THE TABLE" in tiny.shipway("resume").stdout
    assert "nothing to resume" in ended(tiny, "resume", code=64)


def test_a_webhook_that_is_no_address_is_refused(tiny: Workspace) -> None:
    for url in ("notaurl", "ftp://x/y", "https://"):
        assert "SHIPWAY_WEBHOOK must be an address" in ended(tiny, "serve", code=64, SHIPWAY_WEBHOOK=url)


def test_a_second_run_and_a_busy_dvc_are_waited_for_and_said(tiny: Workspace) -> None:
    make_second_stale(tiny)
    with begin(tiny, "dvc", "repro", TINY_END="sleep") as bare:
        until_sleeping(tiny)
        with begin(tiny, "flows.cli", "run") as waiting, begin(tiny, "flows.cli", "run") as second:
            said = {"waiting": "", "second": ""}
            assert waiting.stdout is not None
            assert second.stdout is not None
            said["waiting"], said["second"] = waiting.stdout.readline(), second.stdout.readline()
            os.kill(until_sleeping(tiny), signal.SIGTERM)
            bare.communicate(timeout=60)
            said["waiting"] += waiting.communicate(timeout=60)[0]
            said["second"] += second.communicate(timeout=60)[0]
    assert (waiting.returncode, second.returncode) == (0, 0), said
    first_lines = sorted(text.splitlines()[0] for text in said.values())
    assert first_lines[0].startswith("DVC is busy: process")
    assert first_lines[1].startswith("another run (process")
    assert sum("Running stage 'second@b'" in text for text in said.values()) == 1
    assert sum("nothing to do: all 4 stages" in text for text in said.values()) == 1


# What the parts do, in processes of their own


def test_restore_writes_only_what_differs(tiny: Workspace) -> None:
    before = tiny.read("params.yaml").decode()
    ended(tiny, "run", "first", "--set", "train.lr=0.5", "--set", "model.kwargs={depth: 20}", code=0)
    said = ended(tiny, "restore", "artifacts/third", code=0)
    assert "params.yaml: train.lr: 0.5 -> 0.003" in said
    assert "code: git checkout 0123abc" in said
    restored = tiny.read("params.yaml").decode()
    assert restored == before


def test_a_stage_that_is_stopped_while_it_imports_says_nothing_of_python(tiny: Workspace) -> None:
    with (tiny.root / "stages/second.py").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(
            text.replace("import os, signal, sys, time", "import time\nprint('importing', flush=True)\ntime.sleep(60)")
        )
    with begin(tiny, "flows.cli", "run") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "importing" in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 75, said
    assert "Traceback" not in said
    assert "KeyboardInterrupt" not in said
