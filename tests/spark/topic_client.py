"""What a test writes to a running server, and what paging with `diff` gives back of it."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.harness.raw_client import RawClient

NOT_READY = 503
AWAY_SECONDS_MAX = 20
FIELDS = ("$seq", "$ts", "$tag", "$node", "$meta", "data")


class TopicClient:
    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, method: str, target: str, body: Any = None) -> Any:
        """On a connection of its own: the server ends one on which nothing came for a minute."""
        deadline = time.monotonic() + AWAY_SECONDS_MAX
        while True:
            with RawClient(self._port) as client:
                answer = client.ask(
                    method, f"/v0/topics/{target}", json.dumps(body).encode() if body else None
                )
            if answer.status != NOT_READY or time.monotonic() > deadline:
                break
            # Nothing was done. On a machine that is busy a shard may not answer for a moment.
            time.sleep(0.1)
        assert answer.status < 300, answer.body
        return answer.json

    def put(self, topic: str, **config: Any) -> None:
        self.ask("PUT", topic, config or {"type": "log"})

    def append(self, topic: str, *records: dict[str, Any]) -> None:
        self.ask("POST", topic, {"records": list(records)})

    def fill(self, topic: str, count: int, size: int = 20) -> None:
        for at in range(0, count, 500):
            records = [{"data": {"n": n, "x": "x" * size}} for n in range(at, min(count, at + 500))]
            self.append(topic, *records)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Everything that a reader from the start is given now."""
        records: list[dict[str, Any]] = []
        cursor = 0
        while True:
            body = {"from_seq": cursor, "limit": 1000, "include_tags": True, "include_meta": True}
            answer = self.ask("POST", f"{topic}/diff", body)
            records += answer["records"]
            if answer["next_from_seq"] == cursor:
                return records
            cursor = answer["next_from_seq"]

    def wait_until_durable(self, *topics: str) -> None:
        """Until all that was acked is on the disk itself, and the log says so."""
        deadline = time.monotonic() + 20
        for topic in topics:
            while True:
                state = self.ask("GET", topic)
                if state["durable_seq"] == state["head_seq"]:
                    break
                assert time.monotonic() < deadline, state
                time.sleep(0.01)
        # The log names what was synced in the batch behind it.
        time.sleep(0.3)
