"""Finds the largest micro-batch that fits, by running it in a child process. Free of torch: the child imports it."""

import json
import select
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import IO, Any

import psutil

from stages.runtime.decisions import MIN_GAIN
from stages.runtime.exits import BadParams, GateFailed

MIB = 2.0**20
_POLL_S = 0.01


@dataclass(frozen=True)
class Measured:
    """A micro-batch that was run."""

    micro_batch: int
    peak_mib: float
    step_ms: float
    """One pass with its optimizer step."""

    def window_ms(self, batch_size: int) -> float:
        """What the passes of one effective batch take."""
        return self.step_ms * (batch_size // self.micro_batch)


@dataclass
class Search:
    """What was found, and what was tried on the way."""

    chosen: Measured
    limit_mib: float
    tried: list[dict[str, Any]] = field(default_factory=list)
    passed_over: int | None = None
    """A larger micro-batch that fits too, but is not clearly faster than the kept one."""


class Prober:
    """A child process that runs sizes; started again after it died. Use as a context manager: it leaves no orphan."""

    def __init__(self, setup: dict[str, Any], safety_margin: float) -> None:
        self._setup = setup
        self._margin = safety_margin
        self._child: subprocess.Popen[str] | None = None
        self.device: dict[str, Any] = {}
        self.limit_mib = 0.0
        self.base_mib = 0.0

    def __enter__(self) -> "Prober":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, micro_batch: int) -> Measured | None:
        """Two full steps; None when they do not fit. Raises `BadParams` when the network itself fails."""
        if self._child is None:
            self._start()
        reply = self._ask(str(micro_batch))
        if reply is None:
            self._require_memory_death(micro_batch)
        if reply is None or not reply["fits"]:
            self._end()  # What it allocated goes with it.
            return None
        measured = Measured(micro_batch, reply["peak_mib"], reply["step_ms"])
        return measured if measured.peak_mib <= self.limit_mib else None

    def run_afresh(self, micro_batch: int) -> Measured | None:
        """As `run`, in a new child: what a larger size has left allocated would count as this one's."""
        self._end()
        return self.run(micro_batch)

    def _start(self) -> None:
        command = [sys.executable, "-m", "stages.training.probe"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hello = self._ask(json.dumps(self._setup), watched=False)
        if hello is None:
            raise BadParams("the probe process ended before it could run anything; see its message above")
        self.device = hello["device"]
        self.limit_mib = hello["budget_mib"] * (1.0 - self._margin)
        self.base_mib = hello["base_mib"]

    def _ask(self, line: str, *, watched: bool = True) -> dict[str, Any] | None:
        """The reply; None when the child died, or was ended because it took more than the limit."""
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise RuntimeError("the probe process is not running")
        try:
            child.stdin.write(line + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            return None
        answer = _when_ready(child, self.limit_mib if watched and self.device.get("kind") == "cpu" else None)
        reply: dict[str, Any] | None = json.loads(answer) if answer else None
        if reply is not None and "error" in reply:
            raise BadParams(str(reply["error"]))
        return reply

    def _require_memory_death(self, micro_batch: int) -> None:
        """Raises `BadParams` unless the child was killed (by us, or by the kernel) or gave up for want of memory."""
        code = self._child.wait() if self._child is not None else 0
        if code not in (-signal.SIGKILL, -signal.SIGABRT):
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
            raise BadParams(
                f"the probe process ended by {how} with a batch of {micro_batch}; the network itself is at fault, see "
                "what it said above"
            )

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def search(batch_size: int, prober: Prober) -> Search:
    """Tries the whole effective batch, then ever smaller divisors of it, at least halving, until one fits.

    The largest that fits is taken: it has the fewest passes. Every size handed on was run. Raises `GateFailed` when
    not even one sample fits.
    """
    tried: list[dict[str, Any]] = []
    size: int | None = batch_size if prober.base_mib <= prober.limit_mib else None
    while size is not None:
        measured = prober.run(size)
        tried.append(_row(size, measured))
        if measured is not None:
            return Search(measured, prober.limit_mib, tried)
        size = smaller(batch_size, size)
    raise GateFailed(
        f"not even one sample fits: a training must stay below {prober.limit_mib:.0f} MiB (the budget less its safety "
        f"margin), its process takes {prober.base_mib:.0f} MiB before it has a model; raise "
        "find_batch_size.memory_budget_mib or take a smaller model",
        {"limit_mib": prober.limit_mib, "base_mib": prober.base_mib, "tried": list(tried)},
    )


def prefer_former(found: Search, former: int, batch_size: int, prober: Prober) -> Search:
    """Keeps the former, smaller micro-batch where it still fits and the larger one is not clearly faster.

    Both are compared by the time of one effective batch. A former one that is larger than what fits now is dropped.
    """
    if former >= found.chosen.micro_batch or batch_size % former:
        return found
    rival = prober.run_afresh(former)
    tried = [*found.tried, _row(former, rival)]
    bound_ms = 0.0 if rival is None else rival.window_ms(batch_size) * (1.0 - MIN_GAIN)
    if rival is None or found.chosen.window_ms(batch_size) < bound_ms:
        return Search(found.chosen, found.limit_mib, tried)
    return Search(rival, found.limit_mib, tried, passed_over=found.chosen.micro_batch)


def _row(size: int, measured: Measured | None) -> dict[str, Any]:
    peak = None if measured is None else round(measured.peak_mib, 1)
    return {"micro_batch": size, "fits": measured is not None, "peak_mib": peak}


def smaller(batch_size: int, size: int) -> int | None:
    """The largest divisor of the effective batch that is at most half of `size`; None after 1."""
    return max((part for part in range(1, size // 2 + 1) if batch_size % part == 0), default=None)


def _when_ready(child: "subprocess.Popen[str]", limit_mib: float | None) -> str:
    """The child's next line; empty when it ended. Ends it as soon as its memory passes the limit."""
    if child.stdout is None:
        return ""
    if limit_mib is not None:
        _watch(child, child.stdout, limit_mib)
    return child.stdout.readline()


def _watch(child: "subprocess.Popen[str]", replies: IO[str], limit_mib: float) -> None:
    """Returns when a line is waiting or the child has ended."""
    watched = psutil.Process(child.pid)
    while not select.select([replies], [], [], _POLL_S)[0]:
        try:
            if watched.memory_info().rss / MIB > limit_mib:
                child.kill()
        except psutil.NoSuchProcess:
            return
