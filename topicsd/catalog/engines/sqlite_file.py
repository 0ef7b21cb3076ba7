"""One SQLite file that holds catalogs, for the processes of one machine.

Q1  Each verb is one transaction. A change begins with BEGIN IMMEDIATE, which takes the write lock before
    anything is read: a lock that is taken later fails when another process has written in between. So the
    order of the statements after it is free: other processes see all of them or none.
Q2  The log of SQLite is synced at each commit (`synchronous=FULL`), so a verb that returned survives a power
    cut. In WAL mode readers never wait for a writer.
Q3  A process has one connection, and its threads take turns: SQLite has one writer at a time anyway.
    Processes wait for each other up to BUSY_SECONDS. Open it after a fork, never before.
Q4  `user_version` is the version of the schema. An older one is upgraded in one transaction, a newer one is
    refused.

The file must be on a local disk: WAL mode needs shared memory between the processes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from topicsd.catalog.catalog import CatalogRefused, CatalogUnavailable
from topicsd.catalog.engines.sqlite_schema import UPGRADES
from topicsd.disk.access import access_problem
from topicsd.disk.fs import RealFs

BUSY_SECONDS: Final = 10.0

_REFUSALS: Final = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_SCHEMA,
}
_REASONS: Final = {
    sqlite3.SQLITE_BUSY: f"locked by another process for more than {BUSY_SECONDS:.0f} s",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
}
_DENIALS: Final = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}


class SqliteFile:
    """A file with the tables of all catalogs, which is created if it does not exist."""

    def __init__(
        self,
        path: str,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
        upgrades: Sequence[Sequence[str]] = UPGRADES,
    ) -> None:
        self._path = os.path.abspath(path)
        self._connect = connect
        self._lock = threading.Lock()
        # SQLite would make it readable for all; its other files get the mode of this one.
        with suppress(OSError):
            os.close(RealFs().create(self._path))
        with self._errors():
            self._db = self.connect()
            try:
                self._prepare(upgrades)
            except BaseException:
                self._db.close()
                raise

    @property
    def url(self) -> str:
        return f"sqlite://{self._path}"

    def connect(self) -> sqlite3.Connection:
        """Return another connection to the file."""
        # `isolation_level=None`: the module begins no transaction of its own.
        return self._connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)

    def _prepare(self, upgrades: Sequence[Sequence[str]]) -> None:
        self._db.execute("PRAGMA synchronous = FULL")
        # Read first: a change of the mode does not wait for another process.
        if self._value("PRAGMA journal_mode") != "wal":
            self._set_wal_mode()
        if self._value("PRAGMA user_version") == len(upgrades):
            return
        with self._transaction():
            version = self._value("PRAGMA user_version")
            if version > len(upgrades):
                raise CatalogRefused(
                    f"{self.url}: written by a newer version of topicsd, with schema {version}; "
                    f"this one knows schema {len(upgrades)}"
                )
            for statements in upgrades[version:]:
                for statement in statements:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {len(upgrades)}")

    def _set_wal_mode(self) -> None:
        try:
            mode = self._value("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY:
                raise
            # Another process changes it at this moment; its transaction is over when this one begins.
            with self._transaction():
                pass
            mode = self._value("PRAGMA journal_mode = WAL")
        if mode != "wal":
            raise CatalogRefused(f"{self.url}: the file system has no shared memory; use a local disk")

    def _value(self, statement: str) -> Any:
        return self._db.execute(statement).fetchone()[0]

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for one statement, which sees one state of the file."""
        with self._errors(), self._lock:
            yield self._db

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for several statements, which all see the same state of the file."""
        with self._errors(), self._lock, self._transaction("BEGIN"):
            yield self._db

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that no other writer interrupts (Q1)."""
        with self._errors(), self._lock, self._transaction():
            yield self._db

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        self._db.execute(begin)
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            # Also after a COMMIT that failed, which may leave the transaction open.
            if self._db.in_transaction:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._catalog_error(error) from error

    def _catalog_error(self, error: sqlite3.DatabaseError) -> OSError:
        code = _code(error)
        reason = _REASONS.get(code, str(error))
        if code in _DENIALS:
            folder = os.path.dirname(self._path)
            reason = access_problem(self._path if os.path.exists(self._path) else folder) or reason
        kind = CatalogRefused if code in _REFUSALS else CatalogUnavailable
        return kind(f"{self.url}: {reason}")


def _code(error: sqlite3.DatabaseError) -> int:
    """Return the primary result code: the low byte of the code that SQLite gave."""
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF
