"""`shipway serve` with a server of its own is killed: the run saves, and goes on after a restart."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from flows import server
from tests.conftest import Workspace
from tests.e2e.served import LIMIT_S, Served, alive, until, until_asleep

pytestmark = pytest.mark.e2e


class OnItsOwn(Served):
    """Without PREFECT_API_URL: its address is known once it has started."""

    def start(self) -> None:
        """Starts it on a free port and reads the address from what it prints."""
        super().start()
        line = next(line for line in self.log.read_text().splitlines() if line.startswith("Prefect: "))
        self.address = server.Address(line.split()[1])


def test_after_a_kill_of_everything_the_run_goes_on(tiny: Workspace, tmp_path: Path) -> None:
    (tmp_path / "end").write_text("sleep")
    shutil.rmtree(tiny.root / ".shipway/prefect", ignore_errors=True)
    tiny.git("add", "-A")
    tiny.git("commit", "-q", "-m", "done")
    served = OnItsOwn(tiny, server.Address(""), {"TINY_END_FILE": str(tmp_path / "end")}, port=server.free_port())
    served.start()
    run = served.run("train-to-deploy/on-demand", overrides={"train": {"lr": 0.07}})
    until(lambda: served.clone(run).is_dir(), "no clone came")
    stage = until_asleep(served.clone(run))
    family = served.processes()
    assert served.process is not None
    os.kill(served.process.pid, signal.SIGKILL)
    served.process.wait()
    until(lambda: not alive(stage), "the stage lives on")
    assert (served.clone(run) / "saved.txt").read_text() == "saved"
    until(lambda: not any(alive(one.pid) for one in family), "processes are left")
    (tmp_path / "end").write_text("")
    served.start()
    try:
        assert served.state(run)[:2] == ("CRASHED", "Crashed")
        assert "goes on" in tiny.shipway("resume").stdout
        assert served.until_state(run, "Completed")[0] == "COMPLETED"
        without_its_server(served, tmp_path)
    finally:
        served.stop()


def without_its_server(served: Served, folder: Path) -> None:
    """Its server is killed: it says so, lets the run save, and ends."""
    (folder / "end").write_text("sleep")
    run = served.run("train-to-deploy/on-demand", overrides={"train": {"lr": 0.08}})
    until(lambda: served.clone(run).is_dir(), "no clone came")
    stage, family = until_asleep(served.clone(run)), served.processes()
    (own,) = (one for one in family if one.cmdline()[1:5] == ["-m", "prefect", "server", "start"])
    own.kill()
    assert served.process is not None
    assert served.process.wait(timeout=LIMIT_S) == 75
    assert "Prefect's server has ended" in served.log.read_text()
    assert (served.clone(run) / "saved.txt").read_text() == "saved"
    assert not alive(stage)
    until(lambda: not any(alive(one.pid) for one in family), "processes are left")
