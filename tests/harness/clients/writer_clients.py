"""Clients that write continuously, each a thread with its own connection, and one that reads.

Promises: requests and answers are noted in the `ProcessLedger` before and after. Some writers stay with one
topic; others write to all of them, so that their requests cross the shards; some pipeline requests. A
connection that ends is opened again, and a refused client pauses for a moment. After the block no request is
in flight.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from random import Random

from tests.harness.books.process_ledger import ProcessLedger, Sent
from tests.harness.clients.live_threads import LiveThreads
from tests.harness.clients.raw_client import RawClient

PAUSE_SECONDS = 0.02


class Writers(LiveThreads):
    def __init__(
        self,
        port: int,
        book: ProcessLedger,
        seed: object,
        *,
        writers: int = 4,
        retries: list[Sent] | None = None,
        topics: list[str] | None = None,
        pause_seconds: float = 0.0,
        size: int | None = None,
    ) -> None:
        super().__init__()
        self._port = port
        self._book = book
        self._topics = topics or list(book.topics)
        self._pause_seconds = pause_seconds
        self._size = size
        self._retries = deque(retries or ())
        self.ended_count = 0
        """The number of connections that ended before an answer."""
        self._threads = [
            threading.Thread(target=self._live, args=(self._write, Random(f"{seed} {number}")))
            for number in range(writers)
        ]
        self._threads.append(threading.Thread(target=self._live, args=(self._read, Random(f"{seed} r"))))

    def _live(self, work: Callable[[RawClient, Random], None], rng: Random) -> None:
        while not self._ending.is_set():
            try:
                with RawClient(self._port) as client:
                    work(client, rng)
            except ConnectionError:
                self.ended_count += 1
                self._ending.wait(PAUSE_SECONDS)
            except Exception as problem:
                self._book.complaints.append(f"{type(problem).__name__}: {problem}")
                return

    def _write(self, client: RawClient, rng: Random) -> None:
        own = rng.choice(self._topics) if rng.random() < 0.4 else None
        depth = rng.choice((1, 1, 3, 10))
        for _ in range(200):
            if self._ending.wait(self._pause_seconds) or not self._exchange(client, rng, own, depth):
                return

    def _exchange(self, client: RawClient, rng: Random, own: str | None, depth: int) -> bool:
        """Pipeline `depth` requests and read the answers; return whether to keep the connection."""
        sent = deque(self._next(rng, own) for _ in range(depth))
        is_refused = False
        try:
            client.send(b"".join([one.wire for one in sent]))
            while sent:
                answer = client.read_answer("POST")
                is_refused = not self._book.answered(sent.popleft(), answer) or is_refused
                if answer.closes:
                    break
        finally:
            for one in sent:
                self._book.lost(one)
        if is_refused:
            self._ending.wait(PAUSE_SECONDS)
        return not answer.closes

    def _next(self, rng: Random, own: str | None) -> Sent:
        try:
            again = self._retries.popleft()
        except IndexError:
            return self._book.send(own or rng.choice(self._topics), rng, size=self._size)
        self._book.send_again(again)
        return again

    def _read(self, client: RawClient, rng: Random) -> None:
        cursors = dict.fromkeys(self._topics, 0)
        while not self._ending.wait(0.01):
            name = rng.choice(self._topics)
            cursors[name] = self._book.read_on(client, name, cursors[name])
