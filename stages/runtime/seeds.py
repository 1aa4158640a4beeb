"""Seeds and threads. Everything random derives from `seed` and a purpose, never from the wall clock."""

import hashlib
import os
import random
import sys

import numpy as np


def derive(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose: `derive(0, "shuffle", epoch)`."""
    text = "\0".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def apply(seed: int, threads: int) -> None:
    """Seeds random and numpy, and torch where it is loaded; fixes the number of threads.

    An operation without a deterministic form becomes an error, not a silent difference between runs. (The debug mode
    "error" is `torch.use_deterministic_algorithms(True)` without its import of the compiler, which takes seconds.)
    """
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    random.seed(derive(seed, "random"))
    np.random.seed(derive(seed, "numpy") % 2**32)
    if "torch" in sys.modules:
        import torch  # Only where the stage has loaded it: it takes seconds.

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_num_threads(threads)
        torch.manual_seed(derive(seed, "torch"))
        torch.set_deterministic_debug_mode("error")
