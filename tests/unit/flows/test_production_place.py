"""Where production is, and what is told about a `current` that is not as `promote` leaves it."""

import shutil
from pathlib import Path

import pytest

from flows import production
from flows.ends import Refused
from stages.config.editing import edit
from stages.config.exits import Exit
from stages.config.loading import load

SHIPPED = Path(__file__).parents[3] / "params.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "a home"
    folder.mkdir()
    shutil.copy(SHIPPED, folder / "params.yaml")
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("aaaa", "bbbb"):
        (tmp_path / "production" / name).mkdir(parents=True)
        (tmp_path / "production" / name / "manifest.json").write_text("{}")
    return tmp_path / "production"


def put(home: Path, path: str) -> Path:
    edit({"paths.production": path}, home / "params.yaml")
    return production.place(home, load(home / "params.yaml"))


def test_a_relative_path_is_relative_to_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert production.place(home, load(home / "params.yaml")) == tmp_path / "shipway-production"
    assert put(home, "../a/../b") == tmp_path / "b"
    monkeypatch.chdir(tmp_path)
    assert production.place(Path("a home"), load(home / "params.yaml")) == tmp_path / "b"


def test_an_absolute_path_stays_and_nothing_is_made(home: Path, tmp_path: Path) -> None:
    assert put(home, str(tmp_path / "x" / "y")) == tmp_path / "x" / "y"
    assert not (tmp_path / "x").exists()


def test_a_neighbour_whose_name_begins_alike_is_outside(home: Path, tmp_path: Path) -> None:
    assert put(home, "../a home-production") == tmp_path / "a home-production"


@pytest.mark.parametrize("path", [".", "production", "../a home", "../a home/x", "x/../y", "artifacts/../../a home/p"])
def test_a_folder_inside_the_repository_is_refused(home: Path, path: str) -> None:
    with pytest.raises(Refused, match="must lie outside the repository") as caught:
        put(home, path)
    assert caught.value.code == Exit.PARAMS


def test_links_are_followed_before_that_is_judged(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    (home / "out").symlink_to(tmp_path / "real")
    with pytest.raises(Refused, match="must lie outside the repository"):
        put(home, "../link/production")
    with pytest.raises(Refused, match="must lie outside the repository"):
        production.place(tmp_path / "link", load(home / "params.yaml"))
    assert put(home, "out") == tmp_path / "real"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_no_link_is_left_alone(place: Path, kind: str) -> None:
    link = place / "current"
    if kind == "file":
        link.write_text("mine")
    else:
        link.mkdir()
        (link / "mine").touch()
    calls = [lambda: production.current(place), lambda: production.rollback(place, "aaaa", "me")]
    for call in calls:
        with pytest.raises(Refused, match="must be a link that `promote` made; move what is there away") as caught:
            call()
        assert caught.value.code == Exit.DISK
    assert link.read_text() == "mine" if kind == "file" else (link / "mine").exists()
    assert not link.is_symlink()
    assert production.audit(place) == []


def test_a_broken_link_is_said_and_mended_by_a_digest(place: Path) -> None:
    (place / "current").symlink_to("gone")
    for digest in (None, "gone"):
        with pytest.raises(Refused):
            production.rollback(place, digest, "me")
    with pytest.raises(
        Refused, match="points to gone, which is no bundle here; `shipway rollback DIGEST` mends"
    ) as caught:
        production.current(place)
    assert caught.value.code == Exit.DISK
    assert production.rollback(place, "bbbb", "me") == "bbbb"
    assert production.current(place) == "bbbb"
    (line,) = production.audit(place)
    assert (line["what"], line["from"], line["to"]) == ("rollback", None, "bbbb")


@pytest.mark.parametrize("target", ["elsewhere", "file"])
def test_a_foreign_link_is_mended_by_a_digest(place: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "other").mkdir()
    (place / "a file").touch()
    (place / "current").symlink_to(tmp_path / "other" if target == "elsewhere" else "a file")
    assert production.rollback(place, "bbbb", "me") == "bbbb"


@pytest.mark.parametrize("target", ["elsewhere", "file", "bundle by a path", "another link"])
def test_a_foreign_link_is_refused(place: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "other").mkdir()
    (place / "a file").touch()
    (place / "link").symlink_to("link")
    to = {"elsewhere": tmp_path / "other", "file": Path("a file"), "bundle by a path": place / "aaaa"}
    (place / "current").symlink_to(to.get(target, Path("link")))
    with pytest.raises(Refused, match="which is no bundle here") as caught:
        production.current(place)
    assert caught.value.code == Exit.DISK


@pytest.mark.parametrize("target", [".", ".."])
def test_a_link_to_the_folder_itself_is_no_bundle(place: Path, target: str) -> None:
    (place / "current").symlink_to(target)
    with pytest.raises(Refused, match="which is no bundle here"):
        production.current(place)


def test_a_torn_last_line_does_not_stop_a_swap(place: Path) -> None:
    """As a full disk or a power cut leaves it."""
    production.swap(place, "aaaa", "promotion", "me")
    with (place / production.AUDIT).open("a") as file:
        file.write('{"what": "promo')
    assert production.swap(place, "bbbb", "promotion", "me")
    assert production.audit(place)[-1]["to"] == "bbbb"
