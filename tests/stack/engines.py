"""Key-value servers that a test may need, and a clock that a database follows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

import psycopg
import pytest

from shared.runtime.retries import Retries
from tests.harness.machine.manual_clock import ManualClock
from tests.stack.servers import GO_PROGRAMS, KeyValueServer, key_value_server

POLICY: Final = Retries(time.monotonic, time.sleep, 10.0)
_LIBRARIES: Final = {"etcd": "aetcd", "oxia": "oxia"}

_CLOCK = (
    "CREATE TABLE test_clock (now_ms bigint NOT NULL)",
    "CREATE OR REPLACE FUNCTION topicsd_shared_now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS"
    " 'SELECT now_ms FROM test_clock'",
)


class ServerClock(ManualClock):
    """A manual clock that a database follows."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute("SET synchronous_commit = off")
        for statement in _CLOCK:
            self._db.execute(statement.encode())
        self._db.execute("INSERT INTO test_clock VALUES (%s)", (self.now_ms(),))

    def advance_ns(self, ns: int) -> None:
        before = self.now_ms()
        super().advance_ns(ns)
        if self.now_ms() != before:
            self._db.execute("UPDATE test_clock SET now_ms = %s", (self.now_ms(),))

    def close(self) -> None:
        self._db.close()


def needed_server(name: str, folders: pytest.TempPathFactory) -> Iterator[KeyValueServer]:
    """Yield a running server, or skip the test where its program or client library is missing."""
    if not (GO_PROGRAMS / name).exists():
        pytest.skip(f"{GO_PROGRAMS / name} does not exist: run make stack-go, which needs Go")
    try:
        __import__(_LIBRARIES[name])
    except ImportError as error:
        pytest.skip(f"the client library of {name} is not installed: {error}")
    if name == "oxia" and version("xxhash") >= "4":
        pytest.skip("the client library of oxia needs xxhash below 4; install topicsd[oxia]")
    with key_value_server(name, folders.mktemp(name)) as server:
        yield server
