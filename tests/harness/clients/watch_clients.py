"""Clients of a server that is killed in parts: one writer for each topic, and watchers.

Watchers here use event streams; others are in `other_watchers.py`.

Promises: seeds decide what clients do, and the `WatchBook` judges what they receive. A watcher sometimes
stops reading for a while, leaves, takes over its own session, or returns with the id of a received event,
mostly the last. `finish` lets all of them read to the end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final

import msgspec

from tests.harness.books.watch_book import TopicProgress, WatchBook, Written
from tests.harness.clients.event_client import Event, EventClient
from tests.harness.clients.other_watchers import OtherWatcher, Poller, SocketWatcher
from tests.harness.clients.raw_client import Answer, LastingClient, RawClient
from topicsd.stream.event_stream import PAUSED_SECONDS_MAX

NODES: Final = ("", "", "n1", "n2")
TAGS: Final = ("", "red", "blue")
BUFFER_BYTES: Final = 4096
FILLER: Final = "x" * 4000
TIMEOUT_SECONDS: Final = 30.0
QUIET_SECONDS: Final = 0.05
RETRY_SECONDS: Final = 0.05
IDS_KEPT: Final = 20
# The errors that a stream may report besides those of its topics.
INTERRUPTED: Final = {"not_ready", "storage_failed"}
ENDED: Final = {"taken_over", "slow_consumer"}
# Nothing was done, and the request may be retried.
RETRIABLE: Final = {(503, "not_ready"), (429, "throttled")}


class TopicWriter:
    """The only writer of one topic, and everything that happens to it."""

    def __init__(self, port: int, book: WatchBook, topic: str, rng: Random, is_recreated: bool) -> None:
        self._port = port
        self._book = book
        self._topic = topic
        self._rng = rng
        self._is_recreated = is_recreated
        self._client = LastingClient(port)
        self._values = count()
        self._head = 0
        self._path = f"/v0/topics/{topic}"
        cap = book.caps[topic]
        self._config = msgspec.json.encode({"cap_records": cap} if cap else {})

    def make(self) -> None:
        self._until_done("PUT", self._path, self._config)

    def live(self, ending: threading.Event) -> None:
        while not ending.wait(self._rng.uniform(0.002, 0.02)):
            number = self._rng.random()
            if number < 0.01:
                below = self._rng.randint(1, self._head + 1)
                self._delete({"before_seq": below}, below, None)
            elif number < 0.02:
                tag = self._rng.choice(TAGS[1:])
                self._delete({"match": ["tag", "Eq", tag]}, None, tag)
            elif number < 0.032 and self._is_recreated:
                self._recreate()
            else:
                self._append()

    def _append(self) -> None:
        records = [
            Written(next(self._values), self._rng.choice(NODES), self._rng.choice(TAGS))
            for _ in range(self._rng.choice((1, 1, 2, 10)))
        ]
        number = self._book.incarnation(self._topic)
        rows = []
        for value, node, tag in records:
            data: dict[str, Any] = {"n": number, "v": value}
            if not self._book.caps[self._topic] and self._rng.random() < 0.2:
                # A large record does not fit the buffers of a client that does not read.
                data["x"] = FILLER
            record: dict[str, Any] = {"data": data}
            rows.append(record | ({"node": node} if node else {}) | ({"tag": tag} if tag else {}))
        answer = self._client.ask("POST", self._path, msgspec.json.encode({"records": rows}))
        if answer is not None and answer.status == 200:
            assert answer.json["first_seq"] == self._head + 1, answer
        elif answer is not None and (answer.status, answer.code) in RETRIABLE:
            time.sleep(RETRY_SECONDS)
            return
        else:
            assert answer is None or answer.status in (503, 504), answer
            self._book.count("appends in doubt")
            state = self._until_done("GET", self._path)
            assert state.json["head_seq"] in (self._head, self._head + len(records)), state
            if state.json["head_seq"] == self._head:
                return
        self._book.note_written(self._topic, self._head + 1, records)
        self._head += len(records)
        self._book.count("records written", len(records))

    def _delete(self, what: dict[str, Any], before_seq: int | None, tag: str | None) -> None:
        self._book.note_delete(self._topic, before_seq, tag)
        self._until_done("POST", f"{self._path}/delete", msgspec.json.encode(what))
        self._book.count("deletes")

    def _recreate(self) -> None:
        self._until_done("DELETE", self._path)
        self._book.note_recreated(self._topic)
        self._head = 0
        self.make()
        self._book.count("topics recreated")

    def _until_done(self, method: str, target: str, body: bytes | None = None) -> Answer:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            answer = self._client.ask(method, target, body)
            if answer is not None and answer.status in (200, 201):
                return answer
            assert answer is None or answer.status in (503, 504), answer
            assert time.monotonic() < deadline, f"{method} {target}: {answer}"
            time.sleep(RETRY_SECONDS)

    def close(self) -> None:
        self._client.close()


class _Stream(EventClient):
    """A stream that reads only available bytes."""

    def begin(self) -> EventClient:
        super().begin()
        self.socket.settimeout(QUIET_SECONDS)
        return self

    def is_refused(self) -> bool:
        """Return whether the stream was refused for a temporary reason."""
        while len(self._unread) < len(b"HTTP/1.1 200"):
            self._read_more()
        if self._unread.startswith(b"HTTP/1.1 200"):
            return False
        answer = self.read_answer()
        assert (answer.status, answer.code) in RETRIABLE, answer
        return True


class Watcher:
    def __init__(self, port: int, book: WatchBook, rng: Random, topics: list[str]) -> None:
        self._port = port
        self._book = book
        self._rng = rng
        self._topics = topics
        self._nodes = frozenset(rng.choice(([], [], ["n1"], ["n1", "n2"])))
        self._stream: _Stream | None = None
        self._progress: dict[str, TopicProgress] = {}
        self._ids: deque[tuple[str, dict[str, TopicProgress]]] = deque(maxlen=IDS_KEPT)
        self._target = ""

    def live(self, ending: threading.Event) -> None:
        self._begin()
        while not ending.is_set():
            number = self._rng.random()
            if number < 0.02:
                self._book.count("pauses in reading")
                longest = 2.0 if self._rng.random() < 0.99 else PAUSED_SECONDS_MAX + 5
                ending.wait(self._rng.uniform(0.1, longest))
            elif number < 0.04:
                self._reconnect(self._rng.random() < 0.5)
            elif number < 0.044:
                self._begin()
                ending.wait(self._rng.choice((0.0, 1.0)))
            elif any(progress.is_deleted for progress in self._progress.values()) and number < 0.3:
                self._reconnect(False)
            self._read()

    def finish(self) -> None:
        """Read to the end, when no client writes and no process is killed any more."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_done():
            assert time.monotonic() < deadline, (
                f"{self._target}: incomplete after {TIMEOUT_SECONDS} s: {self._progress}"
            )
            if any(progress.is_deleted for progress in self._progress.values()):
                self._reconnect(False)
            self._read()
        # A duplicate would arrive now.
        for _ in range(3):
            self._read()

    def _is_done(self) -> bool:
        return all(
            self._book.is_complete(progress, name, self._nodes) for name, progress in self._progress.items()
        )

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # -- connections ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin with a session of its own."""
        self.close()
        names = self._rng.sample(self._topics, self._rng.randint(1, len(self._topics)))
        from_end = self._rng.random() < 0.2
        body: dict[str, Any] = {
            "topics": {name: {"tail": True} if from_end else {"from_seq": 0} for name in names},
            "limit": self._rng.choice((1, 3, 256)),
            "max_batch_bytes": self._rng.choice((1, 1000, 0)),
            "consistency": self._rng.choice(("eventual", "strong")),
            "heartbeat_ms": 1000,
        }
        if self._nodes:
            body["node"] = sorted(self._nodes)
        made = self._make(msgspec.json.encode(body))
        self._target = made["stream_url"]
        self._progress = {name: TopicProgress(made["topics"][name]["from_seq"]) for name in names}
        self._ids.clear()
        self._connect()

    def _make(self, body: bytes) -> Any:
        for _ in self._tries():
            with suppress(ConnectionError), RawClient(self._port) as client:
                answer = client.ask("POST", "/v0/watch", body)
                if answer.status == 200:
                    return answer.json
                # 404: a topic is being created again.
                assert answer.status in (404, 503, 504), answer
        raise AssertionError("the session was not created")

    def _reconnect(self, before_leaving: bool) -> None:
        """Reconnect, mostly with the last id; `before_leaving` takes over the still open stream."""
        old, self._stream = self._stream, None
        if old is not None and not before_leaving:
            self._rng.choice((old.close, old.reset))()
        if not self._ids:
            self._begin()
        else:
            index = -1 if self._rng.random() < 0.7 else self._rng.randrange(len(self._ids))
            while len(self._ids) - 1 > index % len(self._ids):
                self._ids.pop()
                self._book.count("events replayed")
            self._progress = {name: progress.copy() for name, progress in self._ids[-1][1].items()}
            for progress in self._progress.values():
                progress.is_deleted = False
            self._connect()
        if old is not None:
            old.close()

    def _connect(self) -> None:
        fields = [f"last-event-id: {self._ids[-1][0]}"] if self._ids else []
        for _ in self._tries():
            with suppress(ConnectionError):
                self._stream = self._open(fields)
                if self._stream is not None:
                    self._book.count("streams")
                    return
        raise AssertionError(f"{self._target}: the stream did not open")

    def _open(self, fields: list[str]) -> _Stream | None:
        """Open a stream; return None if it is refused."""
        stream = _Stream(self._port, self._target, *fields, buffer_bytes=BUFFER_BYTES)
        try:
            if not stream.is_refused():
                stream.begin()
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
        return None

    def _tries(self) -> Iterator[None]:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            yield None
            time.sleep(RETRY_SECONDS)

    # -- received events -----------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the available events, at most 50."""
        assert self._stream is not None
        try:
            for _ in range(50):
                if not self._take(self._stream.next()):
                    self._reconnect(False)
                    return
        except TimeoutError:
            return
        except ConnectionError:
            self._book.count("lost streams")
            self._reconnect(False)

    def _take(self, event: Event) -> bool:
        """Take an event; return whether the stream continues."""
        data, nodes, book = event.data, self._nodes, self._book
        if event.name == "error":
            book.count(f"error {data['code']}")
            assert data["code"] in ENDED if "topics" not in data else data["code"] in INTERRUPTED, data
            return "topics" in data
        topic = data["topic"]
        progress = self._progress[topic]
        assert not progress.is_deleted, f"{topic} is deleted, but sent {event}"
        if event.name == "record":
            assert data["records"]
            for record in data["records"]:
                book.note_record(progress, topic, record, nodes)
            book.note_skipped(progress, topic, data["to_seq"], nodes)
            book.count("records read", len(data["records"]))
        elif event.name == "tombstone":
            book.note_tombstone(progress, topic, data, nodes)
            book.count(f"tombstone {data['reason']}")
        elif event.name == "caught-up":
            book.note_skipped(progress, topic, data["head_seq"], nodes)
        else:
            assert event.name == "topic-deleted", event
            progress.is_deleted = True
            book.count(event.name)
        assert event.id, event
        self._ids.append((event.id, {name: one.copy() for name, one in self._progress.items()}))
        return True


class WatchClients:
    """All writers and watchers, each in a thread."""

    def __init__(
        self,
        port: int,
        book: WatchBook,
        seed: object,
        recreated: list[str],
        watchers: int,
        others: int = 0,
    ) -> None:
        """Create the clients; `others` is the number of each other kind of watcher."""
        self._book = book
        topics = list(book.caps)
        self._writers = [
            TopicWriter(port, book, topic, Random(f"{seed} {topic}"), topic in recreated) for topic in topics
        ]
        kinds = [Watcher] * watchers + [Poller, SocketWatcher] * others
        self._watchers = [
            kind(port, book, Random(f"{seed} {number}"), topics) for number, kind in enumerate(kinds)
        ]
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for writer in self._writers:
            writer.make()
        everybody: list[TopicWriter | Watcher | OtherWatcher] = [*self._writers, *self._watchers]
        for one in everybody:
            self._start(partial(one.live, self._ending))

    def finish(self) -> None:
        """Stop the writers, and let every watcher read to the end."""
        self._ending.set()
        self._join()
        if not self._book.complaints:
            for watcher in self._watchers:
                self._start(watcher.finish)
            self._join()
        everybody: list[TopicWriter | Watcher | OtherWatcher] = [*self._writers, *self._watchers]
        for one in everybody:
            with suppress(OSError):
                one.close()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=(work,))
        self._threads.append(thread)
        thread.start()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(2 * TIMEOUT_SECONDS)
            assert not thread.is_alive(), "a client thread did not end"
        self._threads.clear()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as problem:
            self._book.complain(f"{type(problem).__name__}: {problem}")
