"""The pipeline: one file per stage, one folder per part. See docs/ARCHITECTURE.md."""

import os
import signal

# Threads that wait for work spin for some microseconds only, then sleep. Without a bound they spin on a core that
# another process needs (a browser, a second run), and small training steps get many times slower; without spinning at
# all they get twice as slow on a quiet machine. Must stand before torch is loaded; changes no result.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# ONNX Runtime (1.29 and later) sends the names and hashes of models and graphs to its maker unless told not to. Whoever
# wants that sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# A stage that is stopped while it still imports has nothing to save: it ends at once, without Python's traceback. From
# `main` on, stages/runtime/stopping.py sees to a stop.
if "SHIPWAY_SUPERVISOR_PID" in os.environ and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
