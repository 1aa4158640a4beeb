"""What is in production: a link that is swapped at once, and an audit that tells every swap."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import production
from flows.ends import Refused
from stages.config.exits import Exit


def release(folder: Path, *names: str) -> None:
    """Bundles as `promote` leaves them, as far as production looks into them."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "manifest.json").write_text("{}")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "a production"
    release(folder, "aaaa", "bbbb", "cccc")
    return folder


def swaps(place: Path) -> list[tuple[str, str | None, str]]:
    return [(line["what"], line["from"], line["to"]) for line in production.audit(place) if "to" in line]


def cut_off_before_the_link(place: Path, former: str | None) -> None:
    """As a kill leaves it: the audit has its line, `current` still points to what was there before."""
    (place / "current").unlink()
    if former is not None:
        (place / "current").symlink_to(former)


def refused(call: Any, *arguments: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value


def test_at_first_nothing_is_in_production(tmp_path: Path) -> None:
    assert production.current(tmp_path / "none") is None
    assert production.audit(tmp_path / "none") == []
    found = refused(production.rollback, tmp_path / "none", None, "me")
    assert (found.code, "nothing was in production before" in found.sentence) == (Exit.PARAMS, True)


def test_a_swap_is_a_link_and_a_line(place: Path) -> None:
    with production.locked(place):
        assert production.swap(place, "aaaa", "promotion", "Ünal", comment="zwei\nZeilen") is True
    assert production.current(place) == "aaaa"
    assert (place / "current").readlink() == Path("aaaa")  # Relative: the folder may be moved, or mounted elsewhere.
    (line,) = production.audit(place)
    assert line.pop("when").endswith("+00:00")
    assert line == {"what": "promotion", "who": "Ünal", "from": None, "to": "aaaa", "comment": "zwei\nZeilen"}
    assert "Ünal" in (place / production.AUDIT).read_text("utf-8")


def test_swaps_follow_each_other_and_the_same_one_again_does_nothing(place: Path) -> None:
    for digest in ("aaaa", "bbbb", "cccc"):
        assert production.swap(place, digest, "promotion", "me")
        link, text = (place / "current").lstat(), (place / production.AUDIT).read_bytes()
        assert not production.swap(place, digest, "promotion", "you")
        assert (place / "current").lstat() == link
        assert (place / production.AUDIT).read_bytes() == text
    assert swaps(place) == [("promotion", None, "aaaa"), ("promotion", "aaaa", "bbbb"), ("promotion", "bbbb", "cccc")]
    assert sorted(path.name for path in place.iterdir()) == ["aaaa", "audit.jsonl", "bbbb", "cccc", "current"]


def test_a_left_over_of_a_killed_swap_is_no_obstacle(place: Path) -> None:
    (place / f".current.{os.getpid()}").symlink_to("bbbb")
    production.swap(place, "aaaa", "promotion", "me")
    assert production.current(place) == "aaaa"
    assert not list(place.glob(".current.*"))


def test_a_reader_always_finds_a_bundle(place: Path) -> None:
    production.swap(place, "aaaa", "promotion", "me")
    code = (
        "import sys; from pathlib import Path; from flows import production\n"
        "for i in range(100): production.swap(Path(sys.argv[1]), 'ab'[i % 2] * 4, 'promotion', 'me')"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    read = 0
    with subprocess.Popen([sys.executable, "-c", code, str(place)], env=env) as writer:
        while writer.poll() is None:
            assert (place / "current" / "manifest.json").read_text() == "{}"
            read += 1
    assert writer.returncode == 0
    assert read > 0
    assert len(swaps(place)) == 100


def test_one_swap_at_a_time(place: Path) -> None:
    code = (
        "import sys, fcntl; from pathlib import Path\n"
        "with (Path(sys.argv[1]) / '.lock').open('a') as file:\n"
        "  try: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
        "  except BlockingIOError: print('held')"
    )
    look = [sys.executable, "-c", code, str(place)]
    with production.locked(place):
        assert subprocess.run(look, capture_output=True, text=True, check=True).stdout == "held\n"
    assert subprocess.run(look, capture_output=True, text=True, check=True).stdout == "free\n"


def test_a_kill_between_swap_and_line_is_made_good(place: Path) -> None:
    for digest in ("aaaa", "bbbb"):
        production.swap(place, digest, "promotion", "me")
    cut_off_before_the_link(place, "aaaa")
    assert production.current(place) == "aaaa"
    with production.locked(place):
        assert production.current(place) == "bbbb"
    assert swaps(place) == [("promotion", None, "aaaa"), ("promotion", "aaaa", "bbbb")]
    assert production.swap(place, "bbbb", "promotion", "me") is False


def test_a_kill_in_the_very_first_swap_is_made_good(place: Path) -> None:
    production.swap(place, "aaaa", "promotion", "me")
    cut_off_before_the_link(place, None)
    assert production.current(place) is None
    with production.locked(place):
        assert production.swap(place, "aaaa", "promotion", "me") is False
    assert production.current(place) == "aaaa"
    assert swaps(place) == [("promotion", None, "aaaa")]


def test_a_kill_in_a_rollback_is_made_good(place: Path) -> None:
    for digest in ("aaaa", "bbbb", "cccc"):
        production.swap(place, digest, "promotion", "me")
    production.rollback(place, None, "me")
    cut_off_before_the_link(place, "cccc")
    assert "is in production already" in refused(production.rollback, place, "bbbb", "me").sentence
    assert production.current(place) == "bbbb"
    assert swaps(place)[-1] == ("rollback", "cccc", "bbbb")


def test_other_lines_do_not_count_as_swaps(place: Path) -> None:
    production.swap(place, "aaaa", "promotion", "me")
    production.note(place, "rejection", "you", digest="bbbb", comment="worse")
    assert production.swap(place, "aaaa", "promotion", "me") is False
    production.swap(place, "bbbb", "promotion", "me")
    production.note(place, "rejection", "you", digest="cccc")
    assert [line["what"] for line in production.audit(place)] == ["promotion", "rejection", "promotion", "rejection"]
    assert production.rollback(place, None, "me") == "aaaa"


def test_rollback_goes_to_what_was_before(place: Path) -> None:
    for digest in ("aaaa", "bbbb"):
        production.swap(place, digest, "promotion", "me")
    assert production.rollback(place, None, "you") == "aaaa"
    assert production.current(place) == "aaaa"
    assert swaps(place)[-1] == ("rollback", "bbbb", "aaaa")
    assert production.audit(place)[-1]["who"] == "you"


def test_rollback_to_a_digest(place: Path) -> None:
    for digest in ("aaaa", "bbbb"):
        production.swap(place, digest, "promotion", "me")
    assert production.rollback(place, "cccc", "me") == "cccc"
    assert production.current(place) == "cccc"
    assert production.rollback(place, None, "me") == "bbbb"
    assert "is in production already" in refused(production.rollback, place, "bbbb", "me").sentence
    assert [to for _, _, to in swaps(place)] == ["aaaa", "bbbb", "cccc", "bbbb"]


def test_rollback_goes_by_the_last_time_that_a_bundle_came(place: Path) -> None:
    for digest in ("aaaa", "bbbb", "cccc", "bbbb"):
        production.swap(place, digest, "promotion", "me")
    assert production.rollback(place, None, "me") == "cccc"


def test_rollback_with_nothing_before(place: Path) -> None:
    production.swap(place, "aaaa", "promotion", "me")
    found = refused(production.rollback, place, None, "me")
    assert (found.code, "nothing was in production before" in found.sentence) == (Exit.PARAMS, True)
    assert production.current(place) == "aaaa"


def test_rollback_to_a_bundle_that_is_gone(place: Path) -> None:
    for digest in ("aaaa", "bbbb"):
        production.swap(place, digest, "promotion", "me")
    (place / "aaaa" / "manifest.json").unlink()
    found = refused(production.rollback, place, None, "me")
    assert (found.code, found.sentence) == (
        Exit.PARAMS,
        f"aaaa is no bundle in {place}; `ls {place}` shows which are",
    )
    assert production.current(place) == "bbbb"


@pytest.mark.parametrize(
    "name", ["dddd", "../a production/aaaa", "aaaa/", "./aaaa", ".", "..", "/", ".aaaa", "a\0", "*"]
)
def test_rollback_takes_no_path_and_no_other_name(place: Path, name: str) -> None:
    production.swap(place, "bbbb", "promotion", "me")
    release(place, ".aaaa")
    (place.parent / "manifest.json").write_text("{}")
    assert refused(production.rollback, place, name, "me").code == Exit.PARAMS
    assert production.current(place) == "bbbb"
    assert json.loads((place / production.AUDIT).read_text())["to"] == "bbbb"


def test_rollback_refuses_a_name_that_no_file_can_have(place: Path) -> None:
    assert refused(production.rollback, place, "a" * 300, "me").code == Exit.PARAMS


def test_rollback_by_the_start_of_a_digest(tmp_path: Path) -> None:
    first, second = "ab" * 16, "cd" * 16
    release(tmp_path, first, second)
    with production.locked(tmp_path):
        production.swap(tmp_path, first, "promotion", "me")
    assert production.rollback(tmp_path, second[:8], "me") == second
    for start in (first[:7], "", "ef" * 4):
        assert "is no bundle in" in refused(production.rollback, tmp_path, start, "me").sentence


def test_a_damaged_line_of_the_audit_is_named(place: Path) -> None:
    with production.locked(place):
        production.swap(place, "aaaa", "promotion", "me")
    with (place / "audit.jsonl").open("a") as file:
        file.write('{"what": "x\n')
    found = refused(production.rollback, place, "bbbb", "me")
    assert (found.code, found.sentence) == (
        Exit.DISK, f"{place / 'audit.jsonl'}: line 2 is damaged; mend it, or take it out"
    )  # fmt: skip


def test_a_folder_in_place_of_the_link_is_left_alone(place: Path) -> None:
    (place / "current").mkdir()
    assert "must be a link that `promote` made" in refused(production.rollback, place, "bbbb", "me").sentence
    assert not list(place.glob(".current*"))
