"""A node with a broker, in memory: `/produce`, `/consume`, `/health`, `/metrics`, `PUT` of topics.

Several doubles may share one `SharedLog`, as nodes share a catalog and a store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from loadtest.cluster.summary import COUNTERS


class SharedLog:
    """The records of partitions, and faults of the broker that a test wants to be found."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.records: dict[tuple[str, int], list[str]] = {}
        self.loses_record_at = 0
        """The offset of a record that is acknowledged and replaced by the next one."""
        self.repeats_offsets = False
        self.refuses = False

    def append(self, partition: tuple[str, int], records: list[str]) -> int:
        """Append records and return the first offset."""
        with self.lock:
            stored = self.records.setdefault(partition, [])
            first = len(stored) + 1
            kept = list(records)
            if first <= self.loses_record_at < first + len(records):
                del kept[self.loses_record_at - first]
                kept.append(kept[-1])
            stored += kept
            self.lock.notify_all()
            return 1 if self.repeats_offsets else first

    def read(self, partition: tuple[str, int], offset: int, count: int) -> tuple[list[str], int]:
        with self.lock:
            stored = self.records.get(partition, [])
            return stored[offset - 1 : offset - 1 + count], len(stored)

    def wait(self, seconds: float) -> None:
        with self.lock:
            self.lock.wait(seconds)


class BrokerDouble(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, log: SharedLog, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.log = log
        self.created: list[str] = []
        self.counts = {section: dict.fromkeys(names, 0) for section, names in COUNTERS.items()}
        self.started_at_ms = time.time_ns() // 1_000_000
        self.is_away = False
        self.put_status = 201

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    server: BrokerDouble

    def do_GET(self) -> None:
        if self.server.is_away:
            self.close_connection = True
        elif self.path == "/health":
            self._answer(
                200, {"status": "ok", "broker_id": "double", "started_at_ms": self.server.started_at_ms}
            )
        else:
            self._answer(200, {"started_at_ms": self.server.started_at_ms, **self.server.counts})

    def do_PUT(self) -> None:
        self._body()
        self.server.created.append(self.path)
        self._answer(self.server.put_status, {})

    def do_POST(self) -> None:
        request = self._body()
        if self.server.is_away:
            self.close_connection = True
            return
        kind = self.path.removeprefix("/")
        self.server.counts[kind]["requests"] += 1
        answer = self._produce if kind == "produce" else self._consume
        status, results = answer(request)
        self._answer(status, {"results": results})

    def _produce(self, request: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        results = []
        for one in request["topic_partitions"]:
            named = {"topic": one["topic"], "partition": one["partition"]}
            if self.server.log.refuses:
                results.append({**named, "ok": False, "error_type": "BackPressureRejected", "error": "full"})
                continue
            records = one["records"]
            first = self.server.log.append((one["topic"], one["partition"]), records)
            self.server.counts["produce"]["records"] += len(records)
            self.server.counts["produce"]["bytes"] += sum(map(len, records))
            last = first + len(records) - 1
            offsets = {"start_offset": first, "end_offset": last, "count": len(records)}
            results.append({**named, "ok": True, **offsets})
        return (503 if self.server.log.refuses else 200), results

    def _consume(self, request: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        until = time.monotonic() + request["max_wait_ms"] / 1000
        while True:
            results = [self._read(one) for one in request["topic_partitions"]]
            left = until - time.monotonic()
            if any(result["records"] for result in results) or left <= 0:
                self.server.counts["consume"]["records"] += sum(len(one["records"]) for one in results)
                return 200, results
            self.server.log.wait(left)

    def _read(self, one: dict[str, Any]) -> dict[str, Any]:
        offset = one["fetch_offset"]
        count = 1 if one["partition_max_bytes"] < 100 else 1000
        values, head = self.server.log.read((one["topic"], one["partition"]), offset, count)
        return {
            "topic": one["topic"],
            "partition": one["partition"],
            "ok": True,
            "records": [{"offset": at, "value": value} for at, value in enumerate(values, offset)],
            "next_offset": offset + len(values),
            "high_watermark": head,
        }

    def _body(self) -> Any:
        return msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, status: int, document: Any) -> None:
        content = msgspec.json.encode(document)
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *about: Any) -> None:
        pass


@contextmanager
def broker_double(log: SharedLog, port: int = 0) -> Iterator[BrokerDouble]:
    server = BrokerDouble(log, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
