"""The two programs measured in one run: the server, and the ceiling.

Any command can be the server: it receives its data directory, its number of shards and its port file in the
environment, as `topicsd serve` reads them. The `TOPICS_` variables of the caller are not passed on, so that a
figure does not depend on the shell.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Sequence

from loadtest.clients.processes import Running

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVER_COMMAND = (sys.executable, "-m", "topicsd", "serve")
SETTLE_SECONDS = 1.0


class Subjects:
    """The processes of one benchmark line, each in its own directory below `home`."""

    def __init__(self, home: str, server_command: Sequence[str] = SERVER_COMMAND) -> None:
        self.home = home
        self._server_command = server_command
        self._count = 0

    def server(self, shards: int = 1, **settings_more: str) -> Running:
        """Start a server with an empty data directory and wait until it is ready."""
        home = self._fresh()
        settings = {
            "TOPICS_HOST": "127.0.0.1",
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": os.path.join(home, "port"),
            "TOPICS_DATA_DIR": os.path.join(home, "data"),
            "TOPICS_SHARDS": str(shards),
            **settings_more,
        }
        running = Running(self._server_command, home, environ() | settings)
        try:
            running.wait_for(lambda: is_ready(running.port) or None, "answer that it is ready")
        except BaseException:
            running.stop()
            raise
        # Modules loaded in the first second are not part of the measurement.
        time.sleep(SETTLE_SECONDS)
        return running

    def ceiling(self, name: str, *flags: str) -> Running:
        """Start a program of `loadtest.ceilings`."""
        home = self._fresh()
        given = ["--port-file", os.path.join(home, "port"), *flags]
        settings = {"TOPICS_DATA_DIR": os.path.join(home, "data")}
        return Running(
            [sys.executable, "-m", f"loadtest.ceilings.{name}", *given], home, environ() | settings
        )

    def _fresh(self) -> str:
        self._count += 1
        path = os.path.join(self.home, f"subject-{self._count}")
        os.makedirs(path)
        return path


def environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    paths = [PROJECT, *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v0/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
