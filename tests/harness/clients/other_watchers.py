"""Watchers without a session: one that polls, and one that follows on a WebSocket.

Promises: like those of `watch_clients.py`, they act by their seed and are judged by the `WatchBook`. They
keep their cursors themselves, lose connections, leave, return, and read to the end in `finish`.
"""

from __future__ import annotations

import select
import threading
import time
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

from tests.harness.books.watch_book import TopicProgress, WatchBook
from tests.harness.clients.raw_client import LastingClient
from tests.harness.clients.ws_client import Closed, NoWebSocket, WsClient

BUFFER_BYTES: Final = 4096
TIMEOUT_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.05
QUIET_SECONDS: Final = 0.05
# The epoch of a watcher that never saw its topic; it matches any incarnation.
UNKNOWN: Final = None


class Position(msgspec.Struct):
    progress: TopicProgress
    epoch: int | None = UNKNOWN

    def copy(self) -> Position:
        return Position(self.progress.copy(), self.epoch)


class OtherWatcher:
    """A watcher of some topics, with its position in each."""

    def __init__(self, port: int, book: WatchBook, rng: Random, topics: list[str]) -> None:
        self._port = port
        self._book = book
        self._rng = rng
        self._nodes = frozenset(rng.choice(([], [], ["n1"], ["n1", "n2"])))
        names = rng.sample(topics, rng.randint(1, len(topics)))
        self._positions = {name: Position(TopicProgress(0)) for name in names}

    def live(self, ending: threading.Event) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        """Take a few steps of reading."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_done():
            assert time.monotonic() < deadline, f"incomplete: {self._positions}"
            self._read()
        # A duplicate would arrive now.
        for _ in range(3):
            self._read()

    def _is_done(self) -> bool:
        return all(
            self._book.is_complete(position.progress, name, self._nodes)
            for name, position in self._positions.items()
        )

    def _take_records(
        self, name: str, position: Position, records: list[dict[str, Any]], to_seq: int
    ) -> None:
        for record in records:
            self._book.note_record(position.progress, name, record, self._nodes)
        self._book.note_skipped(position.progress, name, to_seq, self._nodes)
        self._book.count(f"records read by a {type(self).__name__}", len(records))


class Poller(OtherWatcher):
    """A watcher that long-polls after its cursor."""

    def __init__(self, port: int, book: WatchBook, rng: Random, topics: list[str]) -> None:
        super().__init__(port, book, rng, topics)
        self._client = LastingClient(port)

    def live(self, ending: threading.Event) -> None:
        while not ending.is_set():
            number = self._rng.random()
            if number < 0.02:
                ending.wait(self._rng.uniform(0.1, 2.0))
            self._poll(self._rng.choice([*self._positions]), self._rng.choice((0, 50, 500)), number > 0.98)

    def _read(self) -> None:
        for name in self._positions:
            self._poll(name, 0, False)

    def _poll(self, name: str, wait_ms: int, leaves: bool) -> None:
        position = self._positions[name]
        body: dict[str, Any] = {
            "from_seq": position.progress.seq,
            "wait_ms": wait_ms,
            "limit": self._rng.choice((1, 3, 256)),
            "node": sorted(self._nodes),
        }
        if position.epoch is not UNKNOWN:
            body["epoch"] = position.epoch
        answer = self._client.ask("POST", f"/v0/topics/{name}/diff", body, leaves=leaves)
        if answer is not None and answer.status == 200:
            page = answer.json
            position.epoch = page["epoch"]
            if page["tombstone"] is not None:
                self._book.note_tombstone(position.progress, name, page["tombstone"], self._nodes)
            self._take_records(name, position, page["records"], page["next_from_seq"])
        elif answer is not None:
            # 404: the topic is being created again.
            assert answer.status in (404, 429, 503, 504), answer
            time.sleep(RETRY_SECONDS)

    def close(self) -> None:
        self._client.close()


class SocketWatcher(OtherWatcher):
    _socket: WsClient | None = None

    def __init__(self, port: int, book: WatchBook, rng: Random, topics: list[str]) -> None:
        super().__init__(port, book, rng, topics)
        self._entering: dict[str, Position] = {}
        """The positions of subscriptions that are not confirmed yet."""
        self._followed: set[str] = set()

    def live(self, ending: threading.Event) -> None:
        while not ending.is_set():
            number = self._rng.random()
            if number < 0.02:
                self._book.count("pauses in reading")
                ending.wait(self._rng.uniform(0.1, 2.0))
            elif number < 0.04:
                self.close()
            elif number < 0.06 and self._followed and not self._entering:
                self._subscribe([self._rng.choice(sorted(self._followed))])
            self._read()

    def _read(self) -> None:
        try:
            if self._socket is None:
                self._socket = WsClient(self._port, buffer_bytes=BUFFER_BYTES)
            missing = [name for name in self._positions if name not in self._followed]
            if missing and not self._entering:
                self._subscribe([self._rng.choice(missing)])
            for _ in range(50):
                if not self._is_there_more() or not self._take(self._socket.read()):
                    return
        except NoWebSocket as refused:
            if b" 503 " not in refused.head[0]:
                raise
            time.sleep(RETRY_SECONDS)
        except ConnectionError:
            self._book.count("lost sockets")
            self.close()
            time.sleep(RETRY_SECONDS)

    def _is_there_more(self) -> bool:
        assert self._socket is not None
        return self._socket.has_more or bool(select.select([self._socket.socket], [], [], QUIET_SECONDS)[0])

    def _subscribe(self, names: list[str]) -> None:
        """Subscribe from the current positions; later messages of an old subscription repeat records."""
        assert self._socket is not None
        self._entering = {name: self._positions[name].copy() for name in names}
        places = {
            name: {"from_seq": position.progress.seq}
            | ({} if position.epoch is UNKNOWN else {"epoch": position.epoch})
            for name, position in self._entering.items()
        }
        with suppress(ConnectionError):
            self._socket.say(
                "subscribe",
                topics=places,
                limit=self._rng.choice((1, 3, 256)),
                node=sorted(self._nodes),
                consistency=self._rng.choice(("eventual", "strong")),
                request_id="s",
            )

    def _take(self, message: Any) -> bool:
        """Take a message; return whether the socket continues."""
        if isinstance(message, Closed):
            self.close()
            return False
        kind = message["op"]
        if kind == "subscribed":
            self._positions |= self._entering
            self._followed |= self._entering.keys()
            for position in self._entering.values():
                position.progress.is_deleted = False
            self._entering = {}
        elif kind == "error":
            return self._take_error(message)
        else:
            self._take_event(kind, message["topic"], message)
        return True

    def _take_error(self, message: dict[str, Any]) -> bool:
        self._book.count(f"error {message['code']} on a socket")
        if "request_id" in message:
            # The topic is being created again, or its shard is away. Earlier subscriptions continue.
            assert message["code"] in ("topic_not_found", "not_ready"), message
            self._entering = {}
            time.sleep(RETRY_SECONDS)
        elif "topics" in message:
            assert message["code"] in ("not_ready", "storage_failed"), message
        else:
            for name, cursor in message["cursors"].items():
                assert cursor["from_seq"] >= self._positions[name].progress.seq or name in self._entering, (
                    message
                )
        return True

    def _take_event(self, kind: str, name: str, message: dict[str, Any]) -> None:
        position = self._positions[name]
        assert name in self._followed or name in self._entering, message
        if kind == "topic_deleted":
            position.progress.is_deleted = True
            self._followed.discard(name)
            self._book.count("topic_deleted on a socket")
            return
        if kind == "record":
            assert message["records"]
            self._take_records(name, position, message["records"], message["to_seq"])
        elif kind == "tombstone":
            self._book.note_tombstone(position.progress, name, message, self._nodes)
            self._book.count(f"tombstone {message['reason']} on a socket")
        else:
            assert kind == "caught_up", message
            self._book.note_skipped(position.progress, name, message["head_seq"], self._nodes)
        position.epoch = message["epoch"]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._followed.clear()
        self._entering = {}
