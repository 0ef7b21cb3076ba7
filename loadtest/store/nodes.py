"""Nodes that share a store and a catalog, requests to them, and a client that follows a topic."""

from __future__ import annotations

import http.client
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from loadtest.bench.rounds import Bench
from loadtest.clients.generator import Load
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured, append_body, run_checked

DATA = b'"%b"' % (b"x" * 98)
"""The data of a record: 100 bytes of JSON."""
DATA_1000 = b'"%b"' % (b"x" * 998)
BATCH = 1000
JSON = {"Content-Type": "application/json"}
TIMEOUT_SECONDS = 600.0
WRITE_PAUSE_SECONDS = 0.005
UNLIMITED = {"TOPICS_BACKGROUND_BYTES_PER_SECOND": "8 GiB"}


class StorePlace:
    """A new store of a kind and a catalog beside it, as settings of a server."""

    def __init__(self, bench: Bench, s3_url: str = "") -> None:
        """Use a folder, or a new prefix in the bucket of `s3_url`."""
        token = secrets.token_hex(4)
        self.folder = os.path.join(bench.home, f"store-{token}")
        os.mkdir(self.folder)
        bucket, _, query = s3_url.partition("?")
        self.url = f"{bucket}/{token}?{query}" if s3_url else f"file://{self.folder}"
        self.settings = {
            "TOPICS_STORE_URL": self.url,
            "TOPICS_CATALOG_URL": f"sqlite:///{self.folder}/catalog.db",
        }


def call(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """Send one request; return the status and the decoded response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body or None, JSON)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


RETRY_SECONDS: Final = 30.0


def ask(port: int, method: str, path: str, body: bytes = b"") -> Any:
    """Return the answer of a request, which is repeated while the server asks for that."""
    until = time.monotonic() + RETRY_SECONDS
    status, answer = call(port, method, path, body)
    while status == 503 and time.monotonic() < until:
        time.sleep(0.1)
        status, answer = call(port, method, path, body)
    if status // 100 != 2:
        raise NotMeasured(f"{method} {path}: {status} {answer}")
    return answer


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def fill(port: int, name: str, records: int, data: bytes = DATA) -> None:
    body = append_body(BATCH, data)
    run_checked(port, Load(path=f"/v0/topics/{name}", body=body, requests=records // BATCH, connections=2))


def wait_until(is_done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_done():
        if time.monotonic() > deadline:
            raise NotMeasured(f"{what}: not within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.1)


def owner(port: int, name: str) -> Any:
    """Return the row of a topic in the catalog, or None before it is there."""
    status, row = call(port, "GET", f"/v0/topics/{name}/owner")
    return row if status == 200 else None


def wait_for_export(port: int, name: str, seq: int) -> float:
    """Wait until the records up to `seq` are in the store; return the seconds."""

    def is_exported() -> bool:
        row = owner(port, name)
        return row is not None and row["exported_to"] >= seq

    return timed(lambda: wait_until(is_exported, f"records up to {seq} exported"))[0]


class FollowingWriter:
    """Writes single records to a topic wherever it is, and notes the longest time without an accepted one."""

    def __init__(self, name: str, *servers: Running) -> None:
        self._path = f"/v0/topics/{name}"
        # A node that does not have the topic must not create another one of this name.
        self._body = append_body(1, DATA)[:-1] + b',"create":false}'
        self._ports = [server.port for server in servers]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.acknowledged = 0
        self.longest_pause = 0.0

    def __enter__(self) -> FollowingWriter:
        self._thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._ending.set()
        self._thread.join()
        if not self.acknowledged:
            raise NotMeasured(f"{self._path}: no write was accepted")

    def _write(self) -> None:
        at, since = 0, time.perf_counter()
        connection = self._connected(at)
        while not self._ending.is_set():
            try:
                connection.request("POST", self._path, self._body, JSON)
                answer = connection.getresponse()
                answer.read()
                is_accepted = answer.status // 100 == 2
            except (OSError, http.client.HTTPException):
                is_accepted = False
            now = time.perf_counter()
            if is_accepted:
                self.longest_pause = max(self.longest_pause, now - since)
                self.acknowledged, since = self.acknowledged + 1, now
            else:
                connection.close()
                at = (at + 1) % len(self._ports)
                connection = self._connected(at)
            time.sleep(WRITE_PAUSE_SECONDS)
        connection.close()

    def _connected(self, at: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._ports[at], timeout=TIMEOUT_SECONDS)
