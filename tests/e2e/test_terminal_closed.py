"""A server that was started in a terminal ends with it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.command_run import PROJECT

pytestmark = pytest.mark.slow


def test_the_server_ends_with_its_terminal(tmp_path: Path) -> None:
    terminal, stderr = pty.openpty()
    port_file = tmp_path / "port"
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    flags = ["--port=0", f"--port-file={port_file}", f"--data-dir={tmp_path / 'data'}", "--shards=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "topicsd", "serve", *flags],
        env={**clean, "PYTHONPATH": str(PROJECT)},
        stderr=stderr,
    )
    os.close(stderr)
    try:
        deadline = time.monotonic() + 20
        while not port_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        said = b""
        while b"keys: not reloaded" not in said:
            said += os.read(terminal, 1 << 16)
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
