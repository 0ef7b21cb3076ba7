"""A catalog in one SQLite file, for the processes of one machine: `sqlite:///path`.

Q1  Each verb is one transaction, also `create_all`. A change begins with BEGIN IMMEDIATE, which takes the
    write lock before the row is read: a lock that is taken later fails when another process has written in
    between. So the order of the statements after it is free: other processes see all of them or none. The
    row is read first, since it decides everything else, and a fenced node reads no extents.
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

from topicsd.catalog import row_changes, sql_tables
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    CatalogRefused,
    CatalogUnavailable,
    Extent,
    Fenced,
    Lookup,
    NewTopic,
    Ownership,
    TopicRow,
)
from topicsd.catalog.row_verbs import RowVerbs
from topicsd.disk.access import access_problem

BUSY_SECONDS: Final = 10.0

UPGRADES: Final = (
    (
        "CREATE TABLE topicsd_topics (name TEXT PRIMARY KEY, topic_id TEXT NOT NULL,"
        " incarnation INTEGER NOT NULL, owner TEXT NOT NULL, owner_epoch INTEGER NOT NULL,"
        " ceiling INTEGER NOT NULL, exported_from INTEGER NOT NULL, exported_to INTEGER NOT NULL,"
        " state TEXT NOT NULL, sealed_key TEXT) WITHOUT ROWID",
        "CREATE TABLE topicsd_extents (topic TEXT NOT NULL, first_seq INTEGER NOT NULL,"
        " last_seq INTEGER NOT NULL, objects TEXT NOT NULL, first_ms INTEGER NOT NULL,"
        " last_ms INTEGER NOT NULL, owner_epoch INTEGER NOT NULL, generation INTEGER NOT NULL,"
        " PRIMARY KEY (topic, first_seq)) WITHOUT ROWID",
    ),
    (
        "CREATE TABLE topicsd_forgotten (name TEXT NOT NULL, incarnation INTEGER NOT NULL,"
        " PRIMARY KEY (name, incarnation)) WITHOUT ROWID",
    ),
)
"""The statements from each version of the schema to the next one, from version 0, an empty file."""

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


class SqliteCatalog(RowVerbs):
    """A catalog in a file, which is created with its tables if it does not exist."""

    def __init__(
        self,
        path: str,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
        upgrades: Sequence[Sequence[str]] = UPGRADES,
    ) -> None:
        self._path = os.path.abspath(path)
        self._lock = threading.Lock()
        with self._errors():
            # `isolation_level=None`: the module begins no transaction of its own.
            self._db = connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(upgrades)
            except BaseException:
                self._db.close()
                raise

    @property
    def url(self) -> str:
        return f"sqlite://{self._path}"

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

    def _row(self, name: str) -> TopicRow | None:
        values = self._db.execute(sql_tables.SELECT_TOPIC, {"name": name}).fetchone()
        return None if values is None else sql_tables.topic_row(values)

    def _extents(self, statement: str, parameters: dict[str, Any]) -> list[Extent]:
        return [sql_tables.extent_row(one) for one in self._db.execute(statement, parameters).fetchall()]

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        with self._errors(), self._lock, self._transaction():
            return self._create(NewTopic(name, topic_id, incarnation, ceiling), node)

    def create_all(self, new: Sequence[NewTopic], node: str) -> list[TopicRow | Fenced]:
        rows: list[TopicRow | Fenced] = []
        # One transaction, since each has a sync.
        with self._errors(), self._lock, self._transaction():
            for one in new:
                try:
                    rows.append(self._create(one, node))
                except Fenced as fenced:
                    rows.append(fenced)
        return rows

    def _create(self, new: NewTopic, node: str) -> TopicRow:
        name, topic_id, incarnation, ceiling = new

        def decide(row: TopicRow | None) -> TopicRow:
            one = {"name": name, "incarnation": incarnation}
            is_forgotten = (
                row is None and self._db.execute(sql_tables.SELECT_FORGOTTEN, one).fetchone()[0] > 0
            )
            return row_changes.created(row, name, topic_id, incarnation, node, ceiling, is_forgotten)

        return self._replace(name, decide)

    def own(self, name: str, ownership: Ownership) -> Lookup:
        with self._errors(), self._lock:
            row = self._row(name)
        return row_changes.looked_up(row, ownership)

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        first, last = row_changes.changed_range(add, remove)
        with self._errors(), self._lock, self._transaction():
            row = row_changes.check_fence(self._row(name), name, ownership)
            between = {"name": name, "first": first, "last": last}
            present = self._extents(sql_tables.SELECT_EXTENTS_BETWEEN, between)
            change = row_changes.published(row, name, ownership, present, add, remove)
            # Removals first: a merged extent has the key of the first one that it replaces.
            self._db.executemany(
                sql_tables.DELETE_EXTENT,
                [{"topic": name, "first_seq": extent.first_seq} for extent in change.remove],
            )
            self._db.executemany(
                sql_tables.INSERT_EXTENT,
                [sql_tables.extent_parameters(name, extent) for extent in change.add],
            )
            if change.row != row:
                self._db.execute(sql_tables.UPDATE_TOPIC, sql_tables.topic_parameters(change.row))
        return change.row

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        with self._errors(), self._lock:
            return self._extents(
                sql_tables.SELECT_EXTENTS_FROM,
                {"name": name, "first": seq, "limit": min(limit, EXTENTS_AT_ONCE)},
            )

    def forget(self, name: str, ownership: Ownership) -> None:
        with self._errors(), self._lock, self._transaction():
            row = self._row(name)
            row_changes.check_forget(row, name, ownership)
            if row_changes.leaves_mark(row):
                one = {"name": name, "incarnation": ownership.incarnation}
                self._db.execute(sql_tables.INSERT_FORGOTTEN, one)
            self._db.execute(sql_tables.DELETE_EXTENTS, {"name": name})
            self._db.execute(sql_tables.DELETE_TOPIC, {"name": name})

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        page = {"prefix": prefix, "after": after, "limit": min(limit, ROWS_AT_ONCE)}
        with self._errors(), self._lock:
            values = self._db.execute(sql_tables.SELECT_TOPICS, page).fetchall()
        return [sql_tables.topic_row(one) for one in values]

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Replace the row of a topic by what `decide` makes of it, in one transaction."""
        with self._errors(), self._lock, self._transaction():
            return self._replace(name, decide)

    def _replace(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        row = self._row(name)
        changed = decide(row)
        if changed != row:
            statement = sql_tables.INSERT_TOPIC if row is None else sql_tables.UPDATE_TOPIC
            self._db.execute(statement, sql_tables.topic_parameters(changed))
        return changed

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
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
