"""An `HttpServer` in a process of its own, for measurements of its memory.

Promises: inside the block it listens; after it, it is gone. `peak_bytes` is the highest resident memory since
`reset_peak_bytes`, as counted by the kernel.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.harness.http_server import HttpServer

PROJECT = Path(__file__).parents[2]


class ServerProcess:
    def __init__(self, data_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.server_process", str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=PROJECT,
        )
        assert self._process.stdout is not None
        self.ports: dict[str, int] = json.loads(self._process.stdout.readline())

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing its input ends the process.
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0

    def reset_peak_bytes(self) -> int:
        """Reset the peak to the current resident memory, and return that."""
        (self._proc / "clear_refs").write_text("5")
        return self._status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        return self._status_bytes("VmHWM")

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all its threads since the start."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self._process.pid}")

    def _status_bytes(self, name: str) -> int:
        match = re.search(rf"^{name}:\s+(\d+) kB$", (self._proc / "status").read_text(), re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024


def main() -> None:
    with HttpServer(Path(sys.argv[1])) as server:
        print(json.dumps(server.ports), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
