"""A guard that restores the logging configuration after a test changed it."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shared.runtime.log_setup import set_up_logging


@contextmanager
def preserve_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raises = list(root.handlers), root.level, logging.raiseExceptions
    hooks = (sys.excepthook, threading.excepthook)
    try:
        yield
    finally:
        # Resets the levels of modules.
        set_up_logging("warning", "test", io.StringIO())
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.raiseExceptions = raises
        sys.excepthook, threading.excepthook = hooks
