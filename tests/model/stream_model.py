"""Random operations around a few streams, and what each stream must have delivered.

Promises: the same seed does the same. There are two shards (`feed_shards.py`) with topics on both. Records
are appended, deleted and evicted, topics deleted and created again; streams stop reading and resume, lose
their connection and return with the id of a received event; the other shard dies and returns.

The oracle knows every published record by topic, incarnation and seq, and which records were deleted on
purpose. At the end, when everything has settled, each stream has delivered, for each topic and since its
cursor: each live record exactly once for each time that it was requested, in order, as it was written; and
for every other record either the same, or a tombstone over it, or the notice that its topic is deleted. A
stream with a filter does all that for the records that it selects, and delivers no other one.
"""

from __future__ import annotations

from copy import copy
from random import Random
from typing import Any

import msgspec

from shared.contract.tag_filter import TagFilter
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.stage.feed_shards import Event, FakeStream, FeedShards, StreamTopics, follow
from topicsd.stream.cursor_token import read_token
from topicsd.stream.sse_stream import rewind

TOPICS = ("c0", "d0", "c1", "d1")
FILTERS = (
    None,
    TagFilter(frozenset(["t1"])),
    TagFilter(prefixes=("t",)),
    TagFilter(globs=("?2",)),
    TagFilter(frozenset(["none"])),
)


def tag_of(value: int) -> str | None:
    return f"t{value % 5}" if value % 5 else None


def is_selected(value: int, match: TagFilter | None) -> bool:
    return match is None or match.selects(tag_of(value) or "")


class TopicProgress(msgspec.Struct):
    """The part of one topic that a client has received."""

    incarnation: int
    seq: int = 0
    """Everything up to here was received or reported."""
    is_deleted: bool = False


class Client:
    """A client that reads its stream and keeps only the last id."""

    def __init__(self, model: StreamModel, limit: int, match: TagFilter | None) -> None:
        self._model = model
        self._limit = limit
        self.match = match
        self.stream: FakeStream
        self.is_connected = False
        self.begin()

    def begin(self) -> None:
        """Begin with a session of its own."""
        model = self._model
        topics = model.rng.sample(TOPICS, model.rng.randint(1, len(TOPICS)))
        heartbeat_ms = 60_000 if self.match is None else 1000
        self.following = StreamTopics(model.stage, dict.fromkeys(topics, 0), heartbeat_ms)
        self.progress = {topic: TopicProgress(model.incarnation[topic]) for topic in topics}
        self._last_id = ""
        self._progress_at_id: dict[str, TopicProgress] = {}
        self._connect()

    def _connect(self) -> None:
        self.stream, _ = follow(self._model.stage, self.following, limit=self._limit, match=self.match)
        self.is_connected = True

    def leave(self) -> None:
        """Drop the connection; written and unread events are lost with it."""
        self.stream.on_lost()
        self.is_connected = False

    def reconnect(self) -> None:
        """Reconnect; as in a session, the client's cursor can only rewind."""
        if not self._last_id:
            self.begin()
            return
        cursor = read_token(self._last_id, self.following.names)
        assert cursor is not None
        rewind(self.following, cursor)
        self.progress = self._progress_at_id
        for progress in self.progress.values():
            progress.is_deleted = False
        self._connect()

    def read(self) -> None:
        for event in self.stream.take():
            if event.name in ("record", "tombstone", "topic-deleted", "caught-up"):
                self._take(event)
            if event.id:
                self._last_id = event.id
                self._progress_at_id = {topic: copy(progress) for topic, progress in self.progress.items()}

    def _take(self, event: Event) -> None:
        topic = event.data["topic"]
        progress = self.progress[topic]
        assert not progress.is_deleted, "a deleted topic sends no event"
        if event.name == "topic-deleted":
            progress.is_deleted = True
        elif event.name == "tombstone":
            self._model.check_tombstone(topic, progress, event, self.following.names, self.match)
        elif event.name == "record":
            assert event.data["records"]
            for record in event.data["records"]:
                self._model.check_record(topic, progress, record, self.match)
            self._model.check_skipped(topic, progress, event.data["to_seq"], self.match)
        else:
            self._model.check_skipped(topic, progress, event.data["head_seq"], self.match)


class StreamModel:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.stage = FeedShards(page_cache_bytes=self.rng.choice([1 << 16, 64 << 20]))
        self.incarnation = dict.fromkeys(TOPICS, 0)
        self.records: dict[tuple[str, int], dict[int, Any]] = {(topic, 0): {} for topic in TOPICS}
        self.deleted: dict[tuple[str, int], set[int]] = {(topic, 0): set() for topic in TOPICS}
        self._value = 0
        for topic in TOPICS:
            cap = self.rng.choice([0, 0, 20])
            self.stage.owner(topic).put(topic, cap_records=cap)
        self.epochs: dict[str, list[int | None]] = {topic: [self._epoch(topic)] for topic in TOPICS}
        """The epochs of the incarnations."""
        filters = Random(f"filters {seed}")
        self.clients = [
            Client(self, self.rng.choice([1, 3, 256]), filters.choice(FILTERS))
            for _ in range(self.rng.randint(1, 4))
        ]

    # -- operations ----------------------------------------------------------------------------------------

    def step(self) -> None:
        actions = [self._append] * 10 + [self._settle] * 6
        actions += [
            self._delete,
            self._pause,
            self._resume,
            self._resume,
            self._read,
            self._read,
            self._leave,
        ]
        actions += [self._return, self._return, self._cut, self._reconnect, self._reconnect, self._pass_time]
        if self.rng.random() < 0.1:
            actions = [self._recreate]
        self.rng.choice(actions)()

    def finish(self) -> None:
        """Reconnect all clients and let them read to the end."""
        self.stage.reconnect()
        self.stage.pass_time(1000)
        for client in self.clients:
            if not client.is_connected:
                client.reconnect()
            client.stream.unpause()
        for _ in range(3):
            self.stage.pass_time(500)
            for client in self.clients:
                client.read()
        for client in self.clients:
            for topic, progress in client.progress.items():
                if progress.is_deleted:
                    continue
                assert progress.incarnation == self.incarnation[topic], (
                    f"{topic} was recreated without a notice"
                )
                head = self._owner(topic).state(topic).head_seq
                self.check_skipped(topic, progress, head, client.match)

    def _owner(self, topic: str) -> OneShard:
        return self.stage.owner(topic)

    def _epoch(self, topic: str) -> int:
        return self._owner(topic).topic(topic).epoch

    def _append(self) -> None:
        topic = self.rng.choice(TOPICS)
        values = []
        for _ in range(self.rng.randint(1, 8)):
            self._value += 1
            values.append(self._value)
        answer = self._owner(topic).append(topic, *[record(one, tag_of(one)) for one in values])
        kept = self.records[topic, self.incarnation[topic]]
        kept.update(zip(range(answer.first_seq, answer.last_seq + 1), values, strict=True))

    def _delete(self) -> None:
        topic = self.rng.choice(TOPICS)
        head = self._owner(topic).state(topic).head_seq
        below = self.rng.randint(1, head + 1)
        self._owner(topic).delete(topic, before_seq=below)
        self.deleted[topic, self.incarnation[topic]].update(range(1, below))

    def _recreate(self) -> None:
        topic = self.rng.choice(TOPICS)
        self._owner(topic).delete_topic(topic)
        self.incarnation[topic] += 1
        self.records[topic, self.incarnation[topic]] = {}
        self.deleted[topic, self.incarnation[topic]] = set()
        self._owner(topic).put(topic)
        self.epochs[topic].append(self._epoch(topic))

    def _settle(self) -> None:
        self.stage.settle()

    def _pass_time(self) -> None:
        self.stage.pass_time(self.rng.choice([50, 200, 2000]))

    def _client(self) -> Client:
        return self.rng.choice(self.clients)

    def _pause(self) -> None:
        self._client().stream.is_paused = True

    def _resume(self) -> None:
        client = self._client()
        if client.is_connected:
            client.stream.unpause()

    def _read(self) -> None:
        client = self._client()
        if client.is_connected:
            client.read()

    def _leave(self) -> None:
        client = self._client()
        if client.is_connected:
            client.leave()

    def _return(self) -> None:
        client = self._client()
        if not client.is_connected:
            client.reconnect()

    def _cut(self) -> None:
        if not self.stage.link.is_cut(1):
            self.stage.restart_away(kill=self.rng.random() < 0.5)

    def _reconnect(self) -> None:
        self.stage.reconnect()

    # -- invariants ----------------------------------------------------------------------------------------

    def check_record(
        self, topic: str, progress: TopicProgress, record: dict[str, Any], match: TagFilter | None
    ) -> None:
        seq = record["$seq"]
        assert seq > progress.seq, f"{topic}: seq {seq} repeats after seq {progress.seq}"
        self.check_skipped(topic, progress, seq - 1, match)
        key = (topic, progress.incarnation)
        assert record["data"] == self.records[key][seq], f"{topic}: seq {seq} is not what was written"
        assert is_selected(record["data"], match), f"{topic}: seq {seq} is not selected"
        progress.seq = seq

    def check_skipped(self, topic: str, progress: TopicProgress, end: int, match: TagFilter | None) -> None:
        """Check that only records deleted on purpose, or not selected, are skipped silently."""
        deleted = self.deleted[topic, progress.incarnation]
        records = self.records[topic, progress.incarnation]
        missed = [
            seq
            for seq in range(progress.seq + 1, end + 1)
            if seq not in deleted and (seq not in records or is_selected(records[seq], match))
        ]
        assert not missed, f"{topic}: seqs {missed} are missing without a tombstone"
        progress.seq = max(progress.seq, end)

    def check_tombstone(
        self,
        topic: str,
        progress: TopicProgress,
        event: Event,
        topics: list[str],
        match: TagFilter | None,
    ) -> None:
        data = event.data
        if data["reason"] == "recreated":
            cursor = read_token(event.id, topics)
            assert cursor is not None
            now = self.epochs[topic].index(cursor[topic][1])
            assert now > progress.incarnation, f"{topic} was not recreated"
            progress.incarnation, progress.seq = now, data["earliest_seq"] - 1
            return
        assert data["gap_from"] > progress.seq, f"{topic}: the tombstone begins before the cursor"
        self.check_skipped(topic, progress, data["gap_from"] - 1, match)
        progress.seq = data["gap_to"]
