"""Random operations around a few topic streams and watch sessions, and what each must have delivered.

Promises: the same seed does the same. There are two shards (`feed_shards.py`). Appends create topics, which
are deleted and created again; records are deleted; both shards are killed or restarted, and the link is cut;
streams of names and patterns, as server-sent events, as lines and on sessions, pause, lose their connection
and return with the last id that they received.

The oracle knows each value by topic, incarnation and seq. A client of a topic must receive each of its
records once and in order: from the position that it had when it last received an id, or from the first record
of a topic that was created later. Only records that were deleted, and those of deleted incarnations, may be
missing. At the end every client has all records of every topic that it selects.
"""

from __future__ import annotations

from copy import copy
from random import Random
from typing import Any, Final

import msgspec

from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.feed_shards import Event, FeedShards
from tests.harness.stage.topic_streams import (
    LINES,
    SessionClient,
    StreamClient,
    TopicStreamClient,
    create_session,
)
from topicsd.service.watch.selection import topic_selection

NAMES: Final = tuple(f"{prefix}{number}" for prefix in ("a.", "b.", "c") for number in range(4))
SELECTIONS: Final = ("*", "a.*", "a.?,c1", "b.*,a.1,a.2", "c*,b.3", "a.0,b.0", "*.1")


class TopicProgress(msgspec.Struct):
    """What a client has received of one topic."""

    incarnation: int
    seq: int = 0
    is_over: bool = False
    """Whether the next record is of a later incarnation."""


class Incarnation(msgspec.Struct):
    """One life of a topic."""

    values: dict[int, int] = {}
    deleted: set[int] = set()
    is_over: bool = False


class Client:
    def __init__(self, model: TopicStreamModel) -> None:
        self._model = model
        self.topics = model.rng.choice(SELECTIONS)
        parsed = topic_selection(self.topics.split(","), 256)
        assert not hasattr(parsed, "code")
        self._selection: Any = parsed
        self._accept = model.rng.choice(["", LINES])
        self._wid = ""
        self._is_session = model.rng.random() < 0.5
        self._last_id = ""
        self.progress: dict[str, TopicProgress] = {}
        self._progress_at_id: dict[str, TopicProgress] = {}
        self.connection: StreamClient | None = None
        self.connect()

    def connect(self) -> None:
        self.progress = {name: copy(one) for name, one in self._progress_at_id.items()}
        self.connection = self._open_session() if self._is_session else self._open_stream()
        self._model.stage.settle()
        if self.connection is None or self.connection.refusal[0]:
            # The other shard is away; the client comes back later.
            assert self.connection is None or self.connection.refusal[0] == 503
            self.connection = None
        else:
            self._model.counts["opened"] += 1

    def _open_stream(self) -> StreamClient:
        worker = self._model.stage.workers[0]
        return TopicStreamClient(worker, topics=self.topics, accept=self._accept, last_id=self._last_id)

    def _open_session(self) -> StreamClient | None:
        """Open the session; create one if there is none, or if nothing came from it yet."""
        stage = self._model.stage
        if self._last_id:
            client = SessionClient(stage.workers[0], self._wid, last_id=self._last_id)
            if client.refusal[0] != 410:
                self._model.counts["resumed sessions"] += 1
                return client
            # It was idle for too long.
            self._last_id, self.progress, self._progress_at_id = "", {}, {}
        topics: dict[str, Any] = {word: {} for word in self.topics.split(",")}
        status, answer = create_session(stage, {"topics": topics, "missing": "wait"})
        if status != 200:
            assert status == 503
            return None
        self._wid = answer["wid"]
        return SessionClient(stage.workers[0], self._wid)

    def leave(self) -> None:
        """Drop the connection; what was written and not read is lost with it."""
        if self.connection is not None:
            self.connection.stream.on_lost()
            self.connection = None

    def read(self) -> None:
        if self.connection is None:
            return
        for event in self.connection.read():
            self._take(event)
            if event.id:
                self._last_id = event.id
                self._progress_at_id = {name: copy(one) for name, one in self.progress.items()}

    def _take(self, event: Event) -> None:
        model = self._model
        model.counts[event.name] += 1
        if event.name == "record":
            for record in event.data["records"]:
                self._take_record(event.data["topic"], record)
        elif event.name == "topic-deleted":
            self.progress.pop(event.data["topic"], None)
        elif event.name == "tombstone":
            assert event.data["reason"] == "recreated", event
            # The records of a later incarnation follow from the first one on.
            one = self.progress.get(event.data["topic"])
            if one is not None:
                one.is_over, one.seq = True, 0
        else:
            assert event.name in ("caught-up", "waiting", "heartbeat", "error"), event

    def _take_record(self, topic: str, record: dict[str, Any]) -> None:
        assert self._selection.selects(topic), f"{topic} is not of {self.topics}"
        number, seq = self._model.written[topic, record["data"]]
        assert seq == record["$seq"]
        one = self.progress.get(topic)
        if one is None:
            one = self.progress[topic] = TopicProgress(number)
        if one.is_over:
            assert number > one.incarnation, f"{topic}: incarnation {number} after {one.incarnation}"
            one.incarnation, one.is_over = number, False
        assert number == one.incarnation, f"{topic}: incarnation {number} after {one.incarnation}"
        self._model.check_skipped(topic, one, seq - 1)
        assert seq > one.seq, f"{topic}: seq {seq} repeats"
        one.seq = seq

    def check_all(self) -> None:
        """Check that the client has every record of the topics that exist and that it selects."""
        for topic, incarnations in self._model.topics.items():
            current = incarnations[-1] if incarnations else None
            if current is None or current.is_over or not self._selection.selects(topic):
                continue
            one = self.progress.get(topic)
            if one is None or one.is_over:
                one = TopicProgress(len(incarnations) - 1)
            assert one.incarnation == len(incarnations) - 1, f"{topic}: {one}"
            self._model.check_skipped(topic, one, max(current.values))


class TopicStreamModel:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.stage = FeedShards(page_cache_bytes=self.rng.choice([1 << 16, 64 << 20]))
        self.topics: dict[str, list[Incarnation]] = {name: [] for name in NAMES}
        self.written: dict[tuple[str, int], tuple[int, int]] = {}
        """Incarnation and seq, by topic and value."""
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "resumed sessions",
                "home ended",
                "opened",
                "record",
                "topic-deleted",
                "tombstone",
                "caught-up",
                "waiting",
                "heartbeat",
                "error",
            ),
            0,
        )
        self._value = 0
        self.clients = [Client(self) for _ in range(self.rng.randint(1, 4))]

    # -- operations ----------------------------------------------------------------------------------------

    def step(self) -> None:
        actions = [self._append] * 8 + [self._settle] * 4 + [self._read] * 4
        actions += [self._delete_topic, self._delete_records, self._leave, self._return, self._return]
        actions += [self._pause, self._resume, self._resume, self._cut, self._reconnect, self._reconnect]
        actions += [self._pass_time, self._end_home]
        self.rng.choice(actions)()

    def finish(self) -> None:
        """Connect all clients and let them read to the end."""
        self.stage.reconnect()
        self.stage.pass_time(2000)
        self._return()
        for client in self.clients:
            assert client.connection is not None
            client.connection.stream.unpause()
        for _ in range(3):
            self.stage.pass_time(1000)
            for client in self.clients:
                client.read()
        for client in self.clients:
            client.check_all()

    def _append(self) -> None:
        topic = self.rng.choice(NAMES)
        incarnations = self.topics[topic]
        if not incarnations or incarnations[-1].is_over:
            incarnations.append(Incarnation({}, set()))
        values = [self._value + number for number in range(1, self.rng.randint(2, 5))]
        self._value = values[-1]
        answer = self._owner(topic).append(topic, *values)
        for seq, value in enumerate(values, answer.first_seq):
            incarnations[-1].values[seq] = value
            self.written[topic, value] = (len(incarnations) - 1, seq)

    def _existing(self) -> str | None:
        names = [name for name, lives in self.topics.items() if lives and not lives[-1].is_over]
        return self.rng.choice(names) if names else None

    def _delete_topic(self) -> None:
        topic = self._existing()
        if topic is not None:
            self._owner(topic).delete_topic(topic)
            self.topics[topic][-1].is_over = True

    def _delete_records(self) -> None:
        topic = self._existing()
        if topic is not None:
            current = self.topics[topic][-1]
            below = self.rng.randint(1, max(current.values))
            self._owner(topic).delete(topic, before_seq=below)
            current.deleted.update(range(1, below))

    def _owner(self, topic: str) -> OneShard:
        return self.stage.owner(topic)

    def _settle(self) -> None:
        self.stage.settle()

    def _pass_time(self) -> None:
        self.stage.pass_time(self.rng.choice([50, 200, 2000, 16_000]))

    def _read(self) -> None:
        self.rng.choice(self.clients).read()

    def _pause(self) -> None:
        connection = self.rng.choice(self.clients).connection
        if connection is not None:
            connection.stream.is_paused = True

    def _resume(self) -> None:
        connection = self.rng.choice(self.clients).connection
        if connection is not None:
            connection.stream.unpause()

    def _leave(self) -> None:
        self.rng.choice(self.clients).leave()

    def _return(self) -> None:
        for client in self.clients:
            if client.connection is not None and client.connection.stream.is_closed:
                # It was too slow.
                client.read()
                client.connection = None
            if client.connection is None:
                client.connect()

    def _cut(self) -> None:
        if not self.stage.link.is_cut(1):
            self.stage.restart_away(kill=self.rng.random() < 0.5)

    def _end_home(self) -> None:
        """Kill or restart the shard of the streams; what they wrote and no client read is lost with it."""
        if self.rng.random() < 0.5 and not self.stage.link.is_cut(1):
            self.counts["home ended"] += 1
            self.stage.end(0, self.rng.choice([OneShard.kill, OneShard.restart]))
            for client in self.clients:
                client.connection = None

    def _reconnect(self) -> None:
        self.stage.reconnect()

    # -- invariants ----------------------------------------------------------------------------------------

    def check_skipped(self, topic: str, one: TopicProgress, end: int) -> None:
        """Check that only deleted records are missing, or those of a topic that is deleted."""
        incarnation = self.topics[topic][one.incarnation]
        missed = [seq for seq in range(one.seq + 1, end + 1) if seq not in incarnation.deleted]
        assert not missed or incarnation.is_over, f"{topic}: seqs {missed} are missing"
