"""Atomic writes, canonical JSON, digests."""

import resource
import signal
from pathlib import Path

import pytest

from stages.runtime.files import canonical_json, digest, write_bytes, write_json


def test_canonical_json_is_one_text_for_equal_values() -> None:
    assert canonical_json({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_bytes(path, b"x" * 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_s_digest_covers_names_and_contents(tmp_path: Path) -> None:
    write_bytes(tmp_path / "one" / "a", b"1")
    write_bytes(tmp_path / "two" / "a", b"1")
    write_bytes(tmp_path / "three" / "b", b"1")
    write_bytes(tmp_path / "four" / "a", b"2")
    found = [digest(tmp_path / name) for name in ("one", "two", "three", "four")]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_the_identity_can_be_left_out_of_a_digest(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"1")
    before = digest(tmp_path)
    write_json(tmp_path / "identity.json", {"stage": "x"})
    assert digest(tmp_path) != before
    assert digest(tmp_path, with_identity=False) == before


def test_nothing_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        digest(tmp_path / "nowhere")


def test_what_dvc_ignores_does_not_count(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.py", b"1")
    before = digest(tmp_path)
    write_bytes(tmp_path / "__pycache__" / "a.cpython-311.pyc", b"2")
    write_bytes(tmp_path / ".DS_Store", b"3")
    assert digest(tmp_path) == before
