"""A client for the contents of topics: what a test writes to a server, and all that it can read.

Promises: each request has a connection of its own, since a server ends an idle one. A request is repeated
while the server is not ready; nothing was done then. Any other refusal is an error of the test.
"""

from __future__ import annotations

import time
from typing import Any

from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.server.processes import wait_until

WAIT_SECONDS = 20.0


class TopicClient:
    def __init__(self, port: int, key: str = "") -> None:
        self._port = port
        self._fields = (f"authorization: Bearer {key}",) if key else ()

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """Send a request to a path below `/v0/`; return the JSON of its answer."""
        return ask_until_ready(self._port, method, f"/v0/{target}", body, *self._fields).succeeded

    # -- changes -------------------------------------------------------------------------------------------

    def put(self, topic: str, **config: object) -> None:
        self.ask("PUT", f"topics/{topic}", config)

    def append(self, topic: str, *records: dict[str, Any], **envelope: object) -> Any:
        return self.ask("POST", f"topics/{topic}", {"records": list(records), **envelope})

    def fill(self, topic: str, count: int, size: int = 20) -> None:
        """Append that many records of about that size."""
        for at in range(0, count, 500):
            self.append(
                topic, *[{"data": {"n": n, "x": "x" * size}} for n in range(at, min(count, at + 500))]
            )

    def call(self, topic: str, call: str, **body: object) -> Any:
        return self.ask("POST", f"topics/{topic}/{call}", body)

    def claim(self, topic: str, count: int, **options: object) -> list[int]:
        answer = self.call(topic, "claim", node="worker", max=count, **options)
        return [job["$seq"] for job in answer["claimed"]]

    def delete(self, topic: str) -> None:
        self.ask("DELETE", f"topics/{topic}")

    # -- contents ------------------------------------------------------------------------------------------

    def state(self, topic: str) -> Any:
        return self.ask("GET", f"topics/{topic}")

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return everything that a reader from the start receives now."""
        rows: list[dict[str, Any]] = []
        cursor = 0
        while True:
            request = {"from_seq": cursor, "limit": 1000, "include_tags": True, "include_meta": True}
            answer = self.call(topic, "diff", **request)
            rows += answer["records"]
            if answer["next_from_seq"] == cursor:
                return rows
            cursor = answer["next_from_seq"]

    # -- waits ---------------------------------------------------------------------------------------------

    def wait_for_rows(self, topic: str, count: int) -> None:
        wait_until(lambda: len(self.rows(topic)) == count, f"{topic} has {count} records")

    def wait_until_durable(self, *topics: str) -> None:
        """Wait until everything acknowledged is on disk, and the log says so."""
        for topic in topics:
            wait_until(lambda: self._is_synced(topic), f"{topic} is synced")  # noqa: B023
        # The log names the synced position in the batch after it.
        time.sleep(0.3)

    def _is_synced(self, topic: str) -> bool:
        state = self.state(topic)
        return bool(state["durable_seq"] == state["head_seq"])


def ask_until_ready(port: int, method: str, target: str, body: object = None, *fields: str) -> Answer:
    """Send a request, again while the server answers that it is not ready: a shard may be busy."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with RawClient(port) as client:
            answer = client.ask(method, target, body, *fields)
        if answer.status != 503 or answer.code != "not_ready" or time.monotonic() > deadline:
            return answer
        time.sleep(0.1)
