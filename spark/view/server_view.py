"""The topics of a server as its API reports them now; `directory_view.py` reads files instead.

Planning sends one request per topic, and one more for a position by time or below the earliest record. The
server reports a record lost in the middle of a topic only when a reader reaches it, so the task reports that
loss and not the plan. The size of a range is estimated from the topic's average; for a shared topic, whose
size the server does not know, it is assumed.
"""

from __future__ import annotations

import msgspec

from spark.source.read_options import SEQ_MAX, ReadOptions
from spark.view.server_client import ServerClient, ServerRefusal, in_path
from topicsd.engine.records.lost_range import LostRange

EPHEMERAL = "ephemeral"
ASSUMED_RECORD_BYTES = 1024


class _Config(msgspec.Struct):
    durability: str = ""


class _TopicState(msgspec.Struct):
    epoch: int
    head_seq: int
    earliest_seq: int
    durable_seq: int
    count: int
    config: _Config
    bytes: int = 0
    shard: int = 0
    from_seq: int = 0
    """The seq at which the requested time begins."""


class ServerTombstone(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str


class _DiffResponse(msgspec.Struct):
    tombstone: ServerTombstone | None


class _Name(msgspec.Struct):
    topic: str


class _Names(msgspec.Struct):
    topics: list[_Name]
    next_cursor: str | None = None


class ServerTopic:
    """A topic read from a server, with the interface of `TopicView`."""

    def __init__(self, name: str, state: _TopicState, client: ServerClient) -> None:
        self.name = name
        self.shard = state.shard
        self._state = state
        self._client = client

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def earliest(self) -> int:
        return self._state.earliest_seq

    @property
    def durable(self) -> int:
        """The last readable seq; the head of an ephemeral topic, which is never on disk."""
        state = self._state
        return state.head_seq if state.config.durability == EPHEMERAL else state.durable_seq

    @property
    def head(self) -> int:
        return self._state.head_seq

    @property
    def end(self) -> int:
        return self.durable + 1

    def seq_at(self, ts: int) -> int | None:
        state = _state_of(self._client, self.name, f"&from_ts={ts}")
        return None if state.from_seq >= state.head_seq else state.from_seq + 1

    def seqs_between(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        """Return the first and the last seq of the records in this time range."""
        first = self.seq_at(from_ms) if from_ms else self.earliest
        beyond = self.seq_at(to_ms + 1) if to_ms < SEQ_MAX else None
        return self.end if first is None else first, (self.end if beyond is None else beyond) - 1

    def lost(self, start: int, end: int) -> LostRange | None:
        if start >= min(self.earliest, end):
            return None
        body = {"after_seq": start - 1, "limit": 1, "include_meta": False}
        answer = self._client.ask("POST", f"topics/{in_path(self.name)}/diff", body)
        tombstone = msgspec.json.decode(answer, type=_DiffResponse).tombstone
        return None if tombstone is None else LostRange(start, tombstone.gap_to, tombstone.reason)

    def bytes_between(self, start: int, end: int) -> int:
        return max(0, end - start) * self._record_bytes

    def end_within(self, start: int, end: int, bytes_max: int) -> int:
        return min(end, start + max(1, bytes_max // self._record_bytes))

    @property
    def _record_bytes(self) -> int:
        if not self._state.bytes:
            return ASSUMED_RECORD_BYTES
        return max(1, self._state.bytes // max(1, self._state.count))


class ServerView:
    def __init__(self, options: ReadOptions) -> None:
        self.location = options.url
        self.topics: dict[str, ServerTopic] = {}
        """The topics that the options select, by name, sorted."""
        self._client = ServerClient(options.url, options.api_key)
        try:
            selection = options.selection
            names = selection.names or [name for name in self._topic_names() if selection.matches(name)]
            for name in sorted(names):
                self._add_topic(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> ServerView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_topic(self, name: str) -> None:
        try:
            state = _state_of(self._client, name)
        except ServerRefusal as refusal:
            if refusal.status != 404:
                raise
        else:
            self.topics[name] = ServerTopic(name, state, self._client)

    def _topic_names(self) -> list[str]:
        names: list[str] = []
        cursor = ""
        while True:
            page = msgspec.json.decode(self._client.ask("GET", f"topics?page_size=1000{cursor}"), type=_Names)
            names += [one.topic for one in page.topics]
            if page.next_cursor is None:
                return names
            cursor = f"&cursor={in_path(page.next_cursor)}"


def _state_of(client: ServerClient, name: str, more: str = "") -> _TopicState:
    return msgspec.json.decode(
        client.ask("GET", f"topics/{in_path(name)}?touch=false{more}"), type=_TopicState
    )
