"""The pipeline: one file per stage, one folder per part. See docs/ARCHITECTURE.md."""

import os

# Threads that wait for work sleep instead of spinning. Spinning on a core that another process needs (a browser, a
# second run, a night with several jobs) makes small training steps several times slower. It must stand before torch is
# loaded, and changes no result.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
