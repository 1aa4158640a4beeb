"""The table and the page: what they show, what they refuse to show, and that nothing from data becomes markup."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stages.reporting import collecting, table
from stages.reporting.__main__ import main
from stages.reporting.page import page
from tests.unit.reporting.build import CLASSES

VOID = {"meta", "br", "line", "rect", "path"}


class Markup(HTMLParser):
    """Collects tags and the addresses in them; checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def parsed(text: str) -> Markup:
    markup = Markup()
    markup.feed(text)
    assert markup.open == []
    return markup


def test_the_table_has_a_row_per_variant_the_teacher_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["variant", "type", "accuracy"]
    assert lines[2].split() == ["teacher", "float", "0.9800", "0.9700", "40.0", "9,000", "120,000", "1.500", "2.250"]
    assert lines[3].split() == ["final", "int8", "0.9800", "0.9700", "10.0", "9,000", "120,000", "0.500", "0.750"]
    assert len({len(line) for line in lines[:4]}) == 1


def test_a_stamp_that_does_not_fit_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = here / "artifacts/profile_model/measured.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "measured_digest": "0" * 64}))
    assert main(["table"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split()[-2:] == ["-", "-"]
    assert "1.500" not in out
    assert "note: latencies were not measured on this model" in out
    assert "shipway run profile_model --force" in out


def test_the_report_is_one_file_that_asks_for_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 0
    out = capsys.readouterr().out
    assert "bundle: artifacts/bundle" in out
    assert "report: artifacts/report.html" in out
    text = (here / "artifacts/report.html").read_text()
    markup = parsed(text)
    assert markup.addresses == []
    assert "script" not in markup.seen
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)
    assert markup.seen.count("svg") == 8  # Two trainings with four charts each.


def test_everything_from_data_is_escaped(here: Path) -> None:
    text = page(collecting.collect(), None)
    assert CLASSES[0] not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "INT8 is &lt;b&gt;slower&lt;/b&gt; here" in text


def test_the_report_shows_verdicts_decisions_and_counts(here: Path) -> None:
    found = collecting.collect()
    text = page(found, None)
    assert "class_collapse" in text
    assert 'class="stretch"' in text
    assert "32 x 2" in text
    assert "Not trained yet" in text  # prune
    assert found.confusion == {(CLASSES[0], CLASSES[0]): 3, (CLASSES[1], CLASSES[0]): 1}
    assert "4.0 times smaller, 3.0 times faster" in text


def test_the_same_workspace_gives_the_same_page(here: Path) -> None:
    assert page(collecting.collect(), None) == page(collecting.collect(), None)


def test_an_empty_workspace_has_a_report_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert "no model is profiled yet" in capsys.readouterr().out
    parsed((tmp_path / "artifacts/report.html").read_text())


@pytest.mark.parametrize(
    "name",
    [
        "profile_model/metrics.json", "quantize/model/decision.json", "prepare_data/data/info.json",
        "diagnose/train/verdict.json", "train/history/meta.json", "profile_model/targets/targets.json",
        "find_batch_size/decision/decision.json", "profile_model/measured.json", "profile_model/confusion.csv",
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"variants', b"\xff\xfe"])
def test_a_damaged_file_becomes_a_note(here: Path, name: str, content: bytes) -> None:
    (here / "artifacts" / name).write_bytes(content)
    found = collecting.collect()
    parsed(page(found, None))
    if name != "profile_model/confusion.csv" or content == b"\xff\xfe":
        assert any(Path(name).name in note or "latencies" in note for note in found.notes), found.notes


def test_a_full_disk_or_a_folder_in_the_way_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "artifacts/report.html").mkdir()
    assert main(["report"]) == 74
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "report: disk (exit 74)" in err


def test_table_of_nothing_is_its_heading() -> None:
    assert table.text([collecting.Row("teacher")])[2].split() == ["teacher", *["-"] * 8]
