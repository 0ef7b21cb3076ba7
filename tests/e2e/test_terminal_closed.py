"""A server that was started in a terminal ends with it."""

from __future__ import annotations

import os
import pty
import signal
from pathlib import Path

import pytest

from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


def test_the_server_ends_with_its_terminal(tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    with WholeServer(tmp_path, shards=1, stderr=stderr, is_awaited=False) as server:
        os.close(stderr)
        assert server.port
        server.signal(signal.SIGHUP)
        said = b""
        while b"keys: not reloaded" not in said:
            said += os.read(terminal, 1 << 16)
        os.close(terminal)
        server.signal(signal.SIGHUP)
        assert server.wait() == 0
