"""A catalog in PostgreSQL, for many nodes: `postgresql://host/database`, through psycopg.

P1  A change of several statements locks the row of its topic first (`SELECT … FOR UPDATE`), and reads
    extents in a later statement, which sees what the previous holder of the lock committed. Each verb locks
    one row, so there is no deadlock between verbs. The last statement is the COMMIT, in the same round trip
    as the writes.
P2  A change is two round trips: lock and read, then write and commit. `create` and `raise_ceiling` are one
    round trip when they succeed, and go the other way to find the reason when they do not. Reads are one
    statement. `create` looks for a forgotten topic (K6) in a statement after the one that inserts the row:
    it sees what was committed before the name was free.
P3  A lost connection, a serialization failure or a restart of the server is retried for the time of the
    policy. The retry is safe because each verb may be repeated; a COMMIT without an answer is not looked up.
P4  A node that stops in the middle of a transaction must not keep the others from adopting its topics: the
    server ends the transaction after IDLE_SECONDS.
P5  The server answers only after the log is on its disk (`synchronous_commit`), whatever its default is.
    Standbys are never read: they may show a fence that is too old.
P6  A server that hangs keeps its connections and answers nothing, so the timeouts of the server and of TCP do
    not end a request. It is given up after ANSWER_SECONDS, with its connection.
P7  The first process creates the tables, or upgrades them, under an advisory lock.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from shared.runtime.retries import Retries
from topicsd.catalog import row_changes, sql_tables
from topicsd.catalog.catalog import (
    EXTENTS_AT_ONCE,
    ROWS_AT_ONCE,
    CatalogExtraMissing,
    CatalogRefused,
    CatalogUnavailable,
    Extent,
    Fenced,
    Lookup,
    Ownership,
    TopicRow,
)
from topicsd.catalog.retries import repeat_request
from topicsd.catalog.row_verbs import RowVerbs

if TYPE_CHECKING:
    from psycopg import Connection, Cursor

T = TypeVar("T")

EXTRA: Final = "topicsd[postgresql]"
CONNECTIONS_MAX: Final = 8
IDLE_SECONDS: Final = 5
LOCK_SECONDS: Final = 5
STATEMENT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 15.0
"""Longer than any statement may take."""
_LOCK_KEY: Final = 0x746F7069_63736400
_RETRYABLE_CLASSES: Final = ("08", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE: connection, rollback, resources, object in use, operator, system."""
_RETRYABLE_STATES: Final = ("23505", "25006", "25P03")
"""Another node inserted the same row; the server became a standby; P4."""
_NOT_READY: Final = re.compile(r"too many|reserved|starting|shutting|recovery|not accepting|terminating")

UPGRADES: Final = (
    (
        # Space in each page, so that a new version of a row goes where the old one is.
        'CREATE TABLE topicsd_topics (name text COLLATE "C" PRIMARY KEY, topic_id text NOT NULL,'
        " incarnation bigint NOT NULL, owner text NOT NULL, owner_epoch bigint NOT NULL,"
        " ceiling bigint NOT NULL, exported_from bigint NOT NULL, exported_to bigint NOT NULL,"
        " state text NOT NULL, sealed_key text) WITH (fillfactor = 50)",
        'CREATE TABLE topicsd_extents (topic text COLLATE "C" NOT NULL, first_seq bigint NOT NULL,'
        " last_seq bigint NOT NULL, objects text NOT NULL, first_ms bigint NOT NULL,"
        " last_ms bigint NOT NULL, owner_epoch bigint NOT NULL, generation bigint NOT NULL,"
        " PRIMARY KEY (topic, first_seq))",
    ),
    (
        'CREATE TABLE topicsd_forgotten (name text COLLATE "C" NOT NULL, incarnation bigint NOT NULL,'
        " PRIMARY KEY (name, incarnation))",
    ),
)
"""The statements from each version of the schema to the next one, from version 0, no tables."""


def _connection_class(psycopg: Any, monotonic: Callable[[], float]) -> type[Connection[Any]]:
    """Return a class of connections that give up a request without an answer (P6)."""

    class AnsweringConnection(psycopg.Connection):  # type: ignore[misc]
        def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
            result: T = super().wait(self._until(gen, monotonic() + ANSWER_SECONDS), *args, **options)
            return result

        def _until(self, gen: Generator[Any, Any, T], deadline: float) -> Generator[Any, Any, T]:
            """Resume `gen`, which the caller does at least ten times a second, until it ends."""
            try:
                readiness = next(gen)
                while True:
                    # Nothing is ready when there was no answer.
                    if not (ready := (yield readiness)) and monotonic() >= deadline:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer within {ANSWER_SECONDS:g} s")
                    readiness = gen.send(ready)
            except StopIteration as end:
                result: T = end.value
                return result

    return AnsweringConnection


def _psycopg_form(statement: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", statement)


_SELECT_TOPIC: Final = _psycopg_form(sql_tables.SELECT_TOPIC)
_LOCK_TOPIC: Final = f"{_SELECT_TOPIC} FOR UPDATE"
_SELECT_TOPICS: Final = _psycopg_form(sql_tables.SELECT_TOPICS)
_INSERT_TOPIC: Final = _psycopg_form(sql_tables.INSERT_TOPIC)
_CREATE_TOPIC: Final = f"{_INSERT_TOPIC} ON CONFLICT DO NOTHING"
_DELETE_FORGOTTEN: Final = _psycopg_form(
    "DELETE FROM topicsd_topics WHERE name = :name AND incarnation = :incarnation AND EXISTS"
    " (SELECT 1 FROM topicsd_forgotten WHERE name = :name AND incarnation = :incarnation)"
)
_INSERT_FORGOTTEN: Final = _psycopg_form(sql_tables.INSERT_FORGOTTEN)
_UPDATE_TOPIC: Final = _psycopg_form(sql_tables.UPDATE_TOPIC)
_DELETE_TOPIC: Final = _psycopg_form(sql_tables.DELETE_TOPIC)
_SELECT_EXTENTS_FROM: Final = _psycopg_form(sql_tables.SELECT_EXTENTS_FROM)
_SELECT_EXTENTS_BETWEEN: Final = _psycopg_form(sql_tables.SELECT_EXTENTS_BETWEEN)
_INSERT_EXTENT: Final = _psycopg_form(sql_tables.INSERT_EXTENT)
_DELETE_EXTENT: Final = _psycopg_form(sql_tables.DELETE_EXTENT)
_DELETE_EXTENTS: Final = _psycopg_form(sql_tables.DELETE_EXTENTS)
_RAISE_CEILING: Final = _psycopg_form(
    "UPDATE topicsd_topics SET ceiling = greatest(ceiling, :ceiling) WHERE name = :name AND owner = :node"
    " AND incarnation = :incarnation AND owner_epoch = :owner_epoch AND state = 'owned'"
    f" RETURNING {', '.join(sql_tables.TOPIC_COLUMNS)}"
)
_SESSION: Final = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', false),"
    f" set_config('lock_timeout', '{LOCK_SECONDS}s', false),"
    f" set_config('statement_timeout', '{STATEMENT_SECONDS}s', false)"
)


_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"

_DEFAULT_PARAMETERS: Final[dict[str, Any]] = {
    "application_name": "topicsd",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "target_session_attrs": "read-write",
    "tcp_user_timeout": 10_000,
}
"""What the URL does not say. Of several hosts, the one that accepts writes (P5)."""


class PostgresqlCatalog(RowVerbs):
    """A catalog in a database; it connects at once, and then when a thread needs a connection."""

    def __init__(self, url: str, retries: Retries, upgrades: Sequence[Sequence[str]] = UPGRADES) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            raise CatalogExtraMissing(f"postgresql: needs a client library; install {EXTRA}") from None
        parts = urlsplit(url)
        self.url = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._psycopg = psycopg
        self._connect = _connection_class(psycopg, retries.monotonic).connect
        self._retries = retries
        try:
            self._parameters = {**_DEFAULT_PARAMETERS, **conninfo_to_dict(url)}
        except psycopg.ProgrammingError as error:
            # The message of the library may quote a part of the URL.
            raise CatalogRefused(f"{self.url}: not a URL of PostgreSQL") from error
        self._lock = threading.Lock()
        self._idle: list[Connection[Any]] = []
        self._turns = threading.Semaphore(CONNECTIONS_MAX)
        try:
            self._run(lambda db: self._upgrade(db, upgrades))
        except BaseException:
            self.close()
            raise

    # -- connections

    def _run(self, work: Callable[[Connection[Any]], T]) -> T:
        return repeat_request(lambda: self._attempt(work), self._retries)

    def _attempt(self, work: Callable[[Connection[Any]], T]) -> T:
        with self._turns:
            try:
                db = self._connection()
                try:
                    result = work(db)
                except BaseException:
                    self._rollback(db)
                    raise
                self._return(db)
                return result
            except self._psycopg.Error as error:
                raise self._catalog_error(error) from error

    def _connection(self) -> Connection[Any]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        db = self._connect(autocommit=True, **self._parameters)
        try:
            db.execute(_SESSION)
        except BaseException:
            db.close()
            raise
        return db

    def _return(self, db: Connection[Any]) -> None:
        with self._lock:
            self._idle.append(db)

    def _rollback(self, db: Connection[Any]) -> None:
        """Return a connection after a failure, or close it; after a lost one, all idle ones are suspect."""
        idle = self._psycopg.pq.TransactionStatus.IDLE
        with suppress(self._psycopg.Error):
            if not db.closed and db.info.transaction_status != idle:
                db.execute("ROLLBACK")
        if not db.closed and db.info.transaction_status == idle:
            self._return(db)
        else:
            db.close()
            self.close()

    def close(self) -> None:
        with self._lock:
            connections, self._idle = self._idle, []
        for db in connections:
            db.close()

    def _catalog_error(self, error: Exception) -> OSError:
        state = getattr(error, "sqlstate", None)
        text = str(error).strip()
        if state is None:
            # A server that refuses a connection gives its reason only as text.
            is_refused = "FATAL:" in text and not _NOT_READY.search(text)
            is_refused |= not isinstance(error, self._psycopg.OperationalError)
        else:
            is_refused = state[:2] not in _RETRYABLE_CLASSES and state not in _RETRYABLE_STATES
        kind = CatalogRefused if is_refused else CatalogUnavailable
        return kind(f"{self.url}: {text.splitlines()[0] if text else type(error).__name__}")

    # -- transactions

    def _upgrade(self, db: Connection[Any], upgrades: Sequence[Sequence[str]]) -> None:
        if _version(db) == len(upgrades):
            return
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
            db.execute("CREATE TABLE IF NOT EXISTS topicsd_schema (version integer NOT NULL)")
            version = _version(db)
            if version > len(upgrades):
                raise CatalogRefused(
                    f"{self.url}: written by a newer version of topicsd, with schema {version}; "
                    f"this one knows schema {len(upgrades)}"
                )
            for statements in upgrades[version:]:
                for statement in statements:
                    db.execute(statement.encode())
            db.execute("DELETE FROM topicsd_schema")
            db.execute("INSERT INTO topicsd_schema VALUES (%s)", (len(upgrades),))

    def _change(self, name: str, decide: Callable[[TopicRow | None], TopicRow]) -> TopicRow:
        """Replace the row of a topic by what `decide` makes of it."""

        def work(db: Connection[Any]) -> TopicRow:
            with db.pipeline():
                db.execute(_BEGIN)
                cursor = db.execute(_LOCK_TOPIC, {"name": name})
            row = _row(cursor)
            changed = decide(row)
            with db.pipeline():
                if changed != row:
                    statement = _INSERT_TOPIC if row is None else _UPDATE_TOPIC
                    db.execute(statement, sql_tables.topic_parameters(changed))
                db.execute("COMMIT")
            return changed

        return self._run(work)

    def _select(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        return self._run(lambda db: db.execute(statement, parameters).fetchall())

    # -- verbs

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        row = row_changes.created(None, name, topic_id, incarnation, node, ceiling)
        parameters = sql_tables.topic_parameters(row)

        def work(db: Connection[Any]) -> tuple[int, int]:
            with db.pipeline():
                db.execute(_BEGIN)
                inserted = db.execute(_CREATE_TOPIC, parameters)
                removed = db.execute(_DELETE_FORGOTTEN, {"name": name, "incarnation": incarnation})
                db.execute("COMMIT")
            return inserted.rowcount, removed.rowcount

        def decide(present: TopicRow | None) -> TopicRow:
            if present is None:
                raise CatalogUnavailable(f"{self.url}: topic {name} changed at the same time")
            return row_changes.created(present, name, topic_id, incarnation, node, ceiling)

        inserted, removed = self._run(work)
        if removed:
            raise Fenced(name, None)
        return row if inserted else self._change(name, decide)

    def own(self, name: str, ownership: Ownership) -> Lookup:
        rows = self._select(_SELECT_TOPIC, {"name": name})
        return row_changes.looked_up(sql_tables.topic_row(rows[0]) if rows else None, ownership)

    def raise_ceiling(self, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
        rows = self._select(_RAISE_CEILING, {"name": name, "ceiling": ceiling, **ownership._asdict()})
        if rows:
            return sql_tables.topic_row(rows[0])
        return super().raise_ceiling(name, ownership, ceiling)

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        first, last = row_changes.changed_range(add, remove)

        def work(db: Connection[Any]) -> TopicRow:
            with db.pipeline():
                db.execute(_BEGIN)
                topic = db.execute(_LOCK_TOPIC, {"name": name})
                extents = db.execute(_SELECT_EXTENTS_BETWEEN, {"name": name, "first": first, "last": last})
            present = [sql_tables.extent_row(one) for one in extents.fetchall()]
            change = row_changes.published(_row(topic), name, ownership, present, add, remove)
            with db.pipeline():
                # Removals first: a merged extent has the key of the first one that it replaces.
                for extent in change.remove:
                    db.execute(_DELETE_EXTENT, {"topic": name, "first_seq": extent.first_seq})
                for extent in change.add:
                    db.execute(_INSERT_EXTENT, sql_tables.extent_parameters(name, extent))
                if change.add or change.remove:
                    db.execute(_UPDATE_TOPIC, sql_tables.topic_parameters(change.row))
                db.execute("COMMIT")
            return change.row

        return self._run(work)

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        page = {"name": name, "first": seq, "limit": min(limit, EXTENTS_AT_ONCE)}
        return [sql_tables.extent_row(one) for one in self._select(_SELECT_EXTENTS_FROM, page)]

    def forget(self, name: str, ownership: Ownership) -> None:
        def work(db: Connection[Any]) -> None:
            with db.pipeline():
                db.execute(_BEGIN)
                topic = db.execute(_LOCK_TOPIC, {"name": name})
            row = _row(topic)
            row_changes.check_forget(row, name, ownership)
            with db.pipeline():
                if row_changes.leaves_mark(row):
                    db.execute(_INSERT_FORGOTTEN, {"name": name, "incarnation": ownership.incarnation})
                db.execute(_DELETE_EXTENTS, {"name": name})
                db.execute(_DELETE_TOPIC, {"name": name})
                db.execute("COMMIT")

        self._run(work)

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        page = {"prefix": prefix, "after": after, "limit": min(limit, ROWS_AT_ONCE)}
        return [sql_tables.topic_row(one) for one in self._select(_SELECT_TOPICS, page)]


def _row(cursor: Cursor[Any]) -> TopicRow | None:
    values = cursor.fetchone()
    return None if values is None else sql_tables.topic_row(values)


def _version(db: Connection[Any]) -> int:
    (table,) = db.execute("SELECT to_regclass('topicsd_schema')").fetchone() or (None,)
    values = db.execute("SELECT version FROM topicsd_schema").fetchone() if table is not None else None
    return int(values[0]) if values is not None else 0
