"""The endpoints of topic streams: check the request and the caps, find the topics, open the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from shared.contract.api_keys import ApiKey
from shared.contract.errors import TOPIC_NOT_FOUND, UNAUTHORIZED, Refusal, invalid, shutting_down
from shared.contract.query import query_text
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.state import ShardState
from topicsd.service.call import Call, start_job
from topicsd.service.shards.limits import StreamPermits
from topicsd.service.watch.stream_request import PlacedRequest, decode_stream
from topicsd.service.watch.topic_lookup import PositionOf, TopicLookup, TopicLookups
from topicsd.stream.event_stream import KEY_REVOKED
from topicsd.stream.tail.stream_id import StreamPosition, read_stream_id
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
        lookups: TopicLookups,
        permits: StreamPermits,
        is_allowed: IsAllowed,
    ) -> None:
        self._state = state
        self._streams = streams
        self._lookups = lookups
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
        lookup = TopicLookup(self._lookups, request.selection, _positions(decoded, resumed))
        is_open = False
        try:
            start = yield from _find(lookup, decoded, resumed)
            refusal = start if isinstance(start, Refusal) else self._refuse_now(request)
            if refusal is not None or isinstance(start, Refusal):
                return refusal
            stream = call.open_stream(request.form.fields)
            is_open = True
            self._streams.open(request, stream, start, partial(self._permits.leave, request.key_id))
            return None
        finally:
            if not is_open:
                lookup.close()
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


def _positions(decoded: PlacedRequest, resumed: Mapping[str, StreamPosition] | None) -> PositionOf:
    """Return the requested position in every topic; that of a client that resumes needs no lookup."""
    position = (None, None) if resumed is not None else (decoded.position.requested, decoded.position.epoch)
    return lambda name: position


def _find(
    lookup: TopicLookup, decoded: PlacedRequest, resumed: Mapping[str, StreamPosition] | None
) -> BackgroundJob[TopicStreamStart | Refusal]:
    """Find the topics; those that a client which resumes lacks were created after its positions."""
    is_waiting, selection = decoded.request.is_waiting, decoded.request.selection
    answer = yield from lookup.run(sorted(selection.filter.tags), is_waiting=is_waiting, first=resumed or ())
    if isinstance(answer, Refusal):
        return answer
    starts: dict[str, FollowStart]
    if resumed is None:
        starts = {name: (start.seq, start.epoch) for name, start in answer.starts.items()}
    else:
        starts = {name: resumed.get(name, FROM_BEGINNING) for name in answer.starts}
    starts |= {name: (resumed or {}).get(name, FROM_BEGINNING) for name in answer.new}
    if not is_waiting:
        lookup.close()
        if not starts:
            return Refusal(TOPIC_NOT_FOUND, "topics: must match at least one topic that exists")
    deleted = _deleted(decoded, resumed, starts)
    return TopicStreamStart(starts, deleted, lookup.finder, answer.missing, answer.are_all)


def _deleted(
    decoded: PlacedRequest, resumed: Mapping[str, StreamPosition] | None, starts: Mapping[str, FollowStart]
) -> dict[str, int]:
    """Return the topics that the client has read and that do not exist, with the last seq that it has."""
    selection, position = decoded.request.selection, decoded.position
    read = resumed or {}
    if resumed is None and position.epoch is not None:
        read = dict.fromkeys(selection.filter.tags, (position.from_seq or 0, position.epoch))
    return {name: seq for name, (seq, _) in read.items() if name not in starts and selection.selects(name)}
