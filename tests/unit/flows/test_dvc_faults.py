"""What a failed run of DVC means, from what the stages and DVC really print."""

from typing import Any

import pytest

from flows import dvc_faults
from flows.ends import MEANING
from flows.supervisor import Report
from stages.config.exits import Exit
from stages.runtime import exits

FAILED = "ERROR: failed to reproduce 'train': "


def report(*tail: str, returncode: int = 255, **fields: Any) -> Report:
    return Report(returncode, tail=tail, **fields)


def said(code: int, sentence: str = "") -> dict[str, Any]:
    return {"code": code, "sentence": sentence, "evidence": {"a": 1}, "seconds": 0.1}


def test_every_exit_code_has_a_meaning_and_there_is_one_enum() -> None:
    assert exits.Exit is Exit
    assert set(MEANING) == set(Exit)


@pytest.mark.parametrize("code", [3, 64, 65, 70, 74, 75])
def test_the_stage_that_failed_speaks_for_itself(code: int) -> None:
    last = {"prepare_data": said(0, "fine"), "train": said(code, "its own words")}
    end = dvc_faults.ended(report(FAILED + "failed to run: python -m stages.train, exited with 9"), last, None)
    assert (end.code, end.stage, end.sentence, end.evidence) == (code, "train", "its own words", {"a": 1})
    assert end.ran == ("prepare_data",)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (FAILED + "failed to run: python -m stages.train, exited with -9", 75, "killed by signal 9"),
        (FAILED + "failed to run: python -m stages.train, exited with 137", 75, "killed by signal 9"),
        (FAILED + "failed to run: python -m stages.train, exited with 1", 70, "before it could say why"),
        (FAILED + "failed to run: ./mine.sh, exited with 65", 65, "exit code 65"),
        (FAILED + "[Errno 28] No space left on device: '/a/b'", 74, "free space"),
        (FAILED + "[Errno 13] Permission denied: '/a/b'", 74, "permissions"),
        (FAILED + "[Errno 2] No such file or directory: '/a/raw.txt'", 65, "dvc pull"),
        (FAILED + "output 'a.txt' does not exist", 65, "dvc pull"),
        ("ERROR: failed to parse 'stages.a.cmd' in 'dvc.yaml': Could not find 'nope'", 64, "correct the file"),
        (FAILED + "Parameters 'train.batch_size' are missing from 'params.yaml'.", 64, "params.yaml"),
        ("ERROR: failed to parse stage 'a' in 'dvc.yaml': Could not find 'data.path'", 64, "params.yaml"),
        ("ERROR: something unheard of", 70, "something unheard of"),
    ],
)
def test_without_a_word_from_a_stage_dvcs_own_line_decides(line: str, code: int, words: str) -> None:
    end = dvc_faults.ended(report("Running stage 'train':", line), {}, None)
    assert end.code == code
    assert words in end.sentence
    assert end.stage == ("train" if line.startswith(FAILED) else None)
    assert "\n" not in end.sentence


def test_a_busy_stage_is_to_be_tried_again_and_names_who_holds_it() -> None:
    tail = (
        FAILED + "'/tmp/a.txt' is busy, it is being blocked by:",
        "  (PID 8576): /venv/bin/dvc repro",
        "If there are no processes with such PIDs, you can manually remove '/tmp/.dvc/tmp/rwlock' and try again.",
    )
    with pytest.raises(dvc_faults.Busy, match=r"process 8576 \(/venv/bin/dvc repro\) works in this repository"):
        dvc_faults.ended(report(*tail), {}, None)


def test_a_stop_counts_more_than_what_the_stage_made_of_it() -> None:
    end = dvc_faults.ended(report(stopped="SIGINT"), {"train": said(75, "saved")}, "train")
    assert (end.code, end.stage) == (75, "train")
    assert dvc_faults.ended(report(returncode=-9, lost=True), {}, None).code == 75
    assert dvc_faults.ended(report(returncode=-9), {}, None).code == 75


def test_success_names_what_ran() -> None:
    end = dvc_faults.ended(report(returncode=0), {"train": said(0)}, None)
    assert (end.code, end.ran) == (0, ("train",))
