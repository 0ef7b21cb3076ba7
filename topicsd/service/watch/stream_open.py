"""The endpoints of topic streams: check the request and the caps, find the topics, open the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from shared.contract.api_keys import ApiKey
from shared.contract.errors import TOPIC_NOT_FOUND, UNAUTHORIZED, Refusal, invalid, shutting_down
from shared.contract.query import query_text
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_not_found
from topicsd.service.call import Call, start_job
from topicsd.service.shards.limits import StreamPermits
from topicsd.service.shards.topic_heads import TopicHead, TopicHeads
from topicsd.service.watch.options import Position
from topicsd.service.watch.stream_request import PlacedRequest, decode_stream
from topicsd.stream.event_stream import KEY_REVOKED
from topicsd.stream.tail.stream_id import ResumedPositions, read_stream_id
from topicsd.stream.tail.topic_finder import TopicFinder
from topicsd.stream.tail.topic_stream import (
    FROM_BEGINNING,
    FollowStart,
    TopicStreamRequest,
    TopicStreams,
    TopicStreamStart,
)

IsAllowed = Callable[[str, Iterable[str]], bool]
"""Returns whether a key, by its id, still exists and covers these topics."""


class TopicStreamOpener:
    def __init__(
        self,
        state: ShardState,
        streams: TopicStreams,
        topic_heads: TopicHeads,
        permits: StreamPermits,
        is_allowed: IsAllowed,
    ) -> None:
        self._state = state
        self._streams = streams
        self._topic_heads = topic_heads
        self._permits = permits
        self._is_allowed = is_allowed
        self._is_draining = False

    def open_one(self, call: Call, key: ApiKey | None) -> None:
        """Open a stream of the topic in the path."""
        start_job(self._state.jobs, "stream", call, self._open(call, call.name, key, is_one=True))

    def open_several(self, call: Call, key: ApiKey | None) -> None:
        """Open a stream of the topics in the query."""
        topics = query_text(call.query, "topics")
        if topics is None:
            call.refuse(invalid("topics", "is required, as in stream?topics=orders.*,clicks"))
        else:
            start_job(self._state.jobs, "stream", call, self._open(call, topics, key, is_one=False))

    def _open(
        self, call: Call, topics: str, key: ApiKey | None, *, is_one: bool
    ) -> BackgroundJob[Refusal | None]:
        """Open a stream. The job ends when it is open: it would keep the connection's state in memory."""
        settings, clock = self._state.settings, self._state.clock
        decoded = decode_stream(call, topics, key, settings, clock, is_one=is_one)
        if isinstance(decoded, Refusal):
            return decoded
        request = decoded.request
        last_id = call.fields.last_event_id
        resumed = read_stream_id(last_id) if last_id else None
        if last_id and resumed is None:
            return invalid("last-event-id", "must be the id of an event of a topic stream")
        if call.is_head:
            call.send_parts([], 0, 200, request.form.fields)
            return None
        refusal: Refusal | None = yield from operation(partial(self._permits.enter, request.key_id, call))
        if refusal is not None:
            return refusal
        search = _TopicLookup(self._topic_heads, self._streams, decoded, resumed)
        is_open = False
        try:
            start = yield from search.run()
            refusal = start if isinstance(start, Refusal) else self._refuse_now(request)
            if refusal is not None or isinstance(start, Refusal):
                return refusal
            stream = call.open_stream(request.form.fields)
            is_open = True
            self._streams.open(request, stream, start, partial(self._permits.leave, request.key_id))
            return None
        finally:
            if not is_open:
                search.close()
                self._permits.leave(request.key_id)

    def _refuse_now(self, request: TopicStreamRequest) -> Refusal | None:
        """Refuse a stream whose key was revoked, or during a drain, after the waits."""
        if self._is_draining:
            return shutting_down()
        names = request.selection.filter.tags
        return None if self._is_allowed(request.key_id, names) else Refusal(UNAUTHORIZED, KEY_REVOKED)

    def drain(self) -> None:
        """End all streams, and refuse new ones."""
        self._is_draining = True
        self._streams.drain()


class _TopicLookup:
    """The lookup of the topics of one stream, and of the positions to begin at.

    With the positions of a client that resumes, topics that these lack were created after them.
    """

    def __init__(
        self,
        topic_heads: TopicHeads,
        streams: TopicStreams,
        decoded: PlacedRequest,
        resumed: ResumedPositions | None,
    ) -> None:
        self._topic_heads = topic_heads
        self._streams = streams
        self._request = decoded.request
        self._position = decoded.position
        self._resumed = resumed
        self._finder: TopicFinder | None = None

    def run(self) -> BackgroundJob[TopicStreamStart | Refusal]:
        selection, is_waiting = self._request.selection, self._request.is_waiting
        names = sorted(selection.filter.tags)
        starts = yield from self._find(names)
        if isinstance(starts, Refusal):
            return starts
        missing = [name for name in names if name not in starts]
        if missing and not is_waiting:
            return topic_not_found(missing[0])
        are_all = True
        if selection.has_patterns or missing:
            self._finder = self._streams.finders.finder(selection, self._streams.topics_max + 1)
            listed: list[str] | Refusal = yield from operation(self._finder.find_existing)
            if isinstance(listed, Refusal):
                return listed
            room = self._streams.topics_max - len(missing) - len(starts)
            matched = [name for name in listed if name not in selection.filter.tags]
            if self._resumed is not None:
                # The topics that the client has seen come first, should there be no room for all.
                resumed = self._resumed
                matched.sort(key=lambda name: resumed.of(name) is None)
            are_all = len(matched) <= room
            others = yield from self._find(matched[: max(room, 0)])
            if isinstance(others, Refusal):
                return others
            # A named topic that was missing a moment ago is new.
            new = {name: self._resumed_start(name) for name in missing if name in listed}
            starts = {**starts, **new, **others}
            if not is_waiting:
                self.close()
            if not starts and not is_waiting:
                return Refusal(TOPIC_NOT_FOUND, "topics: must match at least one topic that exists")
        return TopicStreamStart(starts, self._deleted(starts), self._finder, are_all)

    def close(self) -> None:
        if self._finder is not None:
            self._finder.close()
            self._finder = None

    def _find(self, names: list[str]) -> BackgroundJob[Mapping[str, FollowStart] | Refusal]:
        """Return where to follow those of the topics that exist."""
        position = self._position
        requested = None if self._resumed is not None else position.requested
        heads = yield from self._topic_heads.find(dict.fromkeys(names, requested))
        starts: dict[str, FollowStart] = {}
        for name, head in heads.items():
            if isinstance(head, Refusal):
                if head.code != TOPIC_NOT_FOUND:
                    return head
                continue
            start = self._start(name, head, position)
            if isinstance(start, Refusal):
                return start
            starts[name] = start
        return starts

    def _start(self, name: str, head: TopicHead, position: Position) -> FollowStart | Refusal:
        if self._resumed is not None:
            return self._resumed_start(name)
        start = head.start(name, position.requested, position.epoch)
        return start if isinstance(start, Refusal) else (start.seq, start.epoch)

    def _resumed_start(self, name: str) -> FollowStart:
        """Return the position of a client that resumes; a topic that it lacks was created after it."""
        return (None if self._resumed is None else self._resumed.of(name)) or FROM_BEGINNING

    def _deleted(self, starts: Mapping[str, FollowStart]) -> dict[str, int]:
        """Return the topics that the client has read and that do not exist, with the last seq that it has."""
        selection, position = self._request.selection, self._position
        read = {name: self._resumed.of(name) for name in self._resumed.names} if self._resumed else {}
        if self._resumed is None and position.epoch is not None:
            read = dict.fromkeys(selection.filter.tags, (position.from_seq or 0, position.epoch))
        return {
            name: one[0]
            for name, one in read.items()
            if one is not None and name not in starts and selection.selects(name)
        }
