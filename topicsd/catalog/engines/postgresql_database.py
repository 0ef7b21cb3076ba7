"""One PostgreSQL database that holds catalogs, for many nodes: its connections, schema and errors.

P3  A lost connection, a serialization failure or a restart of the server is retried for the time of the
    policy. The retry is safe because each verb may be repeated; a COMMIT without an answer is not looked up.
P4  A node that stops in the middle of a transaction must not keep the others from the rows that it locked:
    the server ends the transaction after IDLE_SECONDS.
P5  The server answers only after the log is on its disk (`synchronous_commit`), whatever its default is.
    Standbys are never read: they may show a fence that is too old.
P6  A server that hangs keeps its connections and answers nothing, so the timeouts of the server and of TCP do
    not end a request. It is given up after ANSWER_SECONDS, with its connection.
P7  The first process creates the tables, or upgrades them, under an advisory lock.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from shared.runtime.retries import Retries
from topicsd.catalog.catalog import CatalogExtraMissing, CatalogRefused, CatalogUnavailable
from topicsd.catalog.engines.postgresql_schema import UPGRADES
from topicsd.catalog.engines.retries import repeat_request

if TYPE_CHECKING:
    from psycopg import Connection

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

_SESSION: Final = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', false),"
    f" set_config('lock_timeout', '{LOCK_SECONDS}s', false),"
    f" set_config('statement_timeout', '{STATEMENT_SECONDS}s', false)"
)

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"

_DEFAULT_PARAMETERS: Final[dict[str, Any]] = {
    "application_name": "topicsd",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "target_session_attrs": "read-write",
    "tcp_user_timeout": 10_000,
}
"""What the URL does not say. Of several hosts, the one that accepts writes (P5)."""


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


def psycopg_form(statement: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", statement)


class PostgresqlDatabase:
    """The connections to a database; one is made at once, others when a thread needs one."""

    def __init__(self, url: str, retries: Retries, upgrades: Sequence[Sequence[str]] = UPGRADES) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            raise CatalogExtraMissing(f"postgresql: needs a client library; install {EXTRA}") from None
        parts = urlsplit(url)
        self.url = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._psycopg = psycopg
        self._open = _connection_class(psycopg, retries.monotonic).connect
        self._retries = retries
        try:
            self._parameters = {**_DEFAULT_PARAMETERS, **conninfo_to_dict(url)}
        except psycopg.ProgrammingError as error:
            # The message of the library may quote a part of the URL.
            raise CatalogRefused(f"{self.url}: not a URL of PostgreSQL") from error
        self._lock = threading.Lock()
        self._idle: list[Connection[Any]] = []
        self._is_closed = False
        self._turns = threading.Semaphore(CONNECTIONS_MAX)
        try:
            self.run(lambda db: self._upgrade(db, upgrades))
        except BaseException:
            self.close()
            raise

    # -- connections

    def run(self, work: Callable[[Connection[Any]], T]) -> T:
        return repeat_request(lambda: self.attempt(work), self._retries)

    def attempt(self, work: Callable[[Connection[Any]], T]) -> T:
        """Do some work once."""
        with self._turns, self.errors():
            db = self._connection()
            try:
                result = work(db)
            except BaseException:
                self._rollback(db)
                raise
            self._return(db)
            return result

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the errors of the client library as those of a catalog."""
        try:
            yield
        except self._psycopg.Error as error:
            raise self._catalog_error(error) from error

    def _connection(self) -> Connection[Any]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self.connect()

    def connect(self) -> Connection[Any]:
        """Return a connection that the caller closes."""
        db: Connection[Any] = self._open(autocommit=True, **self._parameters)
        try:
            db.execute(_SESSION)
        except BaseException:
            db.close()
            raise
        return db

    def _return(self, db: Connection[Any]) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(db)
                return
        db.close()

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
            self._close_idle()

    def close(self) -> None:
        """Close the connections, those in use when their work is done."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
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

    def select(self, statement: str, parameters: dict[str, Any]) -> list[Any]:
        return self.run(lambda db: db.execute(statement, parameters).fetchall())


def _version(db: Connection[Any]) -> int:
    (table,) = db.execute("SELECT to_regclass('topicsd_schema')").fetchone() or (None,)
    values = db.execute("SELECT version FROM topicsd_schema").fetchone() if table is not None else None
    return int(values[0]) if values is not None else 0
