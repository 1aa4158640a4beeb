"""The environment of Prefect's server, and what a start that fails is called."""

import urllib.request
from pathlib import Path

import pytest

from flows import server
from flows.ends import Refused
from stages.config.exits import Exit

NOBODY = server.Address("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "a.example"}, "a.example,127.0.0.1,localhost"),
        ({"no_proxy": "b.example, localhost"}, "b.example,localhost,127.0.0.1"),
        ({"no_proxy": "b.example", "NO_PROXY": "a.example"}, "b.example,127.0.0.1,localhost"),
    ],
)
def test_this_machine_is_reached_without_a_proxy(
    given: dict[str, str], hosts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = server.client_environment(tmp_path, NOBODY)
    assert environment["no_proxy"] == environment["NO_PROXY"] == hosts
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass("127.0.0.1")


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ("ImportError: no such thing", Exit.BUG),
        ("", Exit.BUG),
        ("OSError: [Errno 28] No space left on device\nApplication startup failed. Exiting.", Exit.DISK),
    ],
)
def test_a_server_that_does_not_start_is_a_bug_unless_its_log_names_the_disk(
    log: str, code: Exit, tmp_path: Path
) -> None:
    path = tmp_path / "server.log"
    path.write_text(log)
    with pytest.raises(Refused) as caught:
        server._wait_until_healthy(NOBODY, lambda: False, 10.0, path)
    assert caught.value.code == code
    assert "ended at once" in caught.value.sentence
    assert all(line in caught.value.sentence for line in log.splitlines())
    assert "\n" not in caught.value.sentence
