"""The heads of topics through NOTIFY and LISTEN of PostgreSQL.

I1  Heads are sent by a transaction of their own, after that of the commit. A transaction with a NOTIFY holds
    one lock of the whole server until its log is on the disk, so commits that notify would wait for each
    other's disks. A transaction that only notifies waits for no disk.
I2  A thread of the process sends them, so no commit waits for it. What was committed meanwhile is sent
    together, of each topic only its last head.
I3  A listener gets the heads of all topics, whatever it follows. When it begins to listen, also again after
    its connection was lost, it reports what it follows, since it may have missed something.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, Final

import msgspec

from topicsd.catalog.engines.postgresql_database import PostgresqlDatabase
from topicsd.catalog.shared.shared_catalog import HeadNotice, PartResult, Slice

CHANNEL: Final = "topicsd_shared_heads"
PAYLOAD_BYTES: Final = 7_900
"""PostgreSQL sends fewer than 8000."""
HEADS_MAX: Final = 10_000
"""Heads that wait to be sent; while the server is away, more are left to the poll."""
PAUSE_SECONDS: Final = 1.0
_NOTIFY: Final = f"SELECT pg_notify('{CHANNEL}', payload) FROM unnest(%s::text[]) AS payload"

_heads = msgspec.json.Decoder(list[tuple[str, int, int]])


def payloads(heads: Sequence[HeadNotice]) -> Iterator[str]:
    """Yield texts that each hold some of the heads.

    >>> list(payloads([HeadNotice("orders", 7, 42), HeadNotice("clicks", 8, 1)]))
    ['[["orders",7,42],["clicks",8,1]]']
    """
    rows = [msgspec.json.encode(one) for one in heads]
    first, size = 0, 2
    for number, row in enumerate(rows):
        if size + len(row) > PAYLOAD_BYTES:
            yield _joined(rows[first:number])
            first, size = number, 2
        size += len(row) + 1
    if rows:
        yield _joined(rows[first:])


def _joined(rows: Sequence[bytes]) -> str:
    return f"[{b','.join(rows).decode()}]"


class HeadPublisher:
    """Sends the heads that this process has committed (I1, I2)."""

    def __init__(self, database: PostgresqlDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._heads: dict[str, tuple[int, int]] = {}
        self._has_heads = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def publish(self, slices: Sequence[Slice], results: Sequence[Sequence[PartResult]]) -> None:
        """Send the heads after a commit, soon."""
        with self._lock:
            for one, slice_results in zip(slices, results, strict=True):
                # Also of a repetition: the first commit had no answer, so it was not published.
                head = max((result.last_seq for result in slice_results), default=0)
                if head and len(self._heads) < HEADS_MAX:
                    # Two commits may get here in another order than into the catalog.
                    present = self._heads.get(one.topic, (0, 0))
                    self._heads[one.topic] = max(present, (one.incarnation, head))
            if self._thread is None and self._heads:
                self._thread = threading.Thread(target=self._run, name="head-publisher", daemon=True)
                self._thread.start()
        self._has_heads.set()

    def close(self) -> None:
        self._is_closed = True
        self._has_heads.set()

    def _run(self) -> None:
        while self._has_heads.wait() and not self._is_closed:
            self._has_heads.clear()
            with self._lock:
                heads, self._heads = self._heads, {}
            texts = [*payloads([HeadNotice(name, *head) for name, head in heads.items()])]
            # What is not sent is left to the poll.
            with suppress(OSError):
                self._database.attempt(lambda db: db.execute(_NOTIFY, (texts,)))  # noqa: B023


class PostgresqlHeadListener:
    def __init__(
        self,
        database: PostgresqlDatabase,
        on_notices: Callable[[Sequence[HeadNotice]], object],
    ) -> None:
        self._database = database
        self._on_notices = on_notices
        self._names: frozenset[str] = frozenset()
        self._is_closed = threading.Event()
        self._wake = os.eventfd(0)
        threading.Thread(target=self._run, name="head-listener", daemon=True).start()

    def follow(self, names: Collection[str]) -> None:
        before, self._names = self._names, frozenset(names)
        if new := self._names - before:
            self._on_notices([HeadNotice(name) for name in sorted(new)])

    def close(self) -> None:
        if not self._is_closed.is_set():
            # In this order: the thread closes the descriptor after it has seen the end.
            os.eventfd_write(self._wake, 1)
            self._is_closed.set()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            with suppress(OSError), self._database.errors(), closing(self._database.connect()) as db:
                db.execute(f"LISTEN {CHANNEL}")
                self._on_notices([HeadNotice(name) for name in sorted(self._names)])
                while not self._is_closed.is_set():
                    self._receive(db)
            self._is_closed.wait(PAUSE_SECONDS)
        os.close(self._wake)

    def _receive(self, db: Any) -> None:
        """Wait for bytes of the server, and report the notices in them."""
        poll = select.poll()
        for descriptor in (db.fileno(), self._wake):
            poll.register(descriptor, select.POLLIN)
        poll.poll()
        db.pgconn.consume_input()
        while (message := db.pgconn.notifies()) is not None:
            with suppress(msgspec.DecodeError):
                self._on_notices([HeadNotice(*head) for head in _heads.decode(message.extra)])
