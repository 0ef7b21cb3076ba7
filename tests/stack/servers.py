"""Servers of other projects that the tests start, on 127.0.0.1 and a free port each.

`make stack` installs them below `.stack/`; `make test` depends on it, so their tests are never skipped.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STACK: Final = Path(__file__).resolve().parents[2] / ".stack"
START_SECONDS: Final = 60.0
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
REGION: Final = "us-east-1"


class S3Server:
    """A server that speaks S3, with its objects in a folder; `url` names a bucket of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str) -> str:
        """Return the URL of a bucket, which is created when it does not exist."""
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        return f"s3://{bucket}?endpoint={self.endpoint}&region={REGION}"

    def start(self) -> None:
        program = STACK / "python" / "bin" / "ministack"
        assert program.exists(), "run: make stack"
        environment = {
            **os.environ,
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.port),
            "LOG_LEVEL": "WARNING",
            "S3_DATA_DIR": str(self._folder / "objects"),
            "S3_PERSIST": "1",
            "SERVICES": "s3",
            "TMPDIR": str(self._folder),
        }
        with open(self._folder / "s3.log", "ab") as log:
            self._process = subprocess.Popen(
                [program], env=environment, cwd=self._folder, stdout=log, stderr=log
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "s3.log").read_text()
            assert time.monotonic() < until, "the S3 server does not answer"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
