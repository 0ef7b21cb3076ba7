"""Catalogs for shared topics over real servers whose clock a test controls."""

from __future__ import annotations

import psycopg

from tests.harness.machine.manual_clock import ManualClock

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
        for statement in _CLOCK:
            self._db.execute(statement.encode())
        self._db.execute("INSERT INTO test_clock VALUES (%s)", (self.now_ms(),))

    def advance_ns(self, ns: int) -> None:
        super().advance_ns(ns)
        self._db.execute("UPDATE test_clock SET now_ms = %s", (self.now_ms(),))

    def close(self) -> None:
        self._db.close()
