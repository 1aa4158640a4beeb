"""Silences libraries that talk to their own developers."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No logging, no warnings, nothing printed: for exporters and quantizers, whose errors are raised all the same."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
