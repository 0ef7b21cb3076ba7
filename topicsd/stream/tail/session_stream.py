"""Streams of watch sessions that look for topics: topic streams whose positions a session keeps.

Q1  The position of a topic is in the session, and in the ids of its stream, from when it is known: for topics
    that existed when the session was created from then on, for others from their first record on. So a topic
    that an id lacks is delivered from its first record.
Q2  The session keeps what was written for each topic; `Last-Event-ID` only ever moves that back. A session
    that was restored has no such memory, and `Last-Event-ID` sets its positions.
Q3  The topics of the positions are followed at once, and reported if they are gone. Other topics are news: a
    stream opens while a shard is unavailable, and has the topics of that shard later.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.contract.errors import Refusal, invalid
from shared.contract.tag_filter import TopicSelection
from topicsd.stream.sessions import Session, Sessions
from topicsd.stream.stream import Stream
from topicsd.stream.tail.stream_form import EVENTS
from topicsd.stream.tail.stream_id import StreamPosition, read_stream_id
from topicsd.stream.tail.topic_stream import (
    TopicStream,
    TopicStreamRequest,
    TopicStreams,
    TopicStreamStart,
)


class SessionStreams:
    """Opens streams on the sessions of one process that look for topics."""

    def __init__(self, sessions: Sessions, streams: TopicStreams) -> None:
        self._sessions = sessions
        self._streams = streams

    def open(
        self,
        session: Session,
        last_event_id: str,
        open_stream: Callable[[], Stream],
        on_end: Callable[[Session], object],
    ) -> Refusal | None:
        """Serve a session on a new stream, or refuse the id; `on_end` is called once the stream has ended."""
        definition, selection = session.definition, session.definition.selection
        assert selection is not None
        positions = positions_of(session, selection, last_event_id)
        if isinstance(positions, Refusal):
            return positions

        def detach() -> None:
            self._sessions.detach(session, one)
            on_end(session)

        request = TopicStreamRequest(
            selection,
            definition.options,
            EVENTS,
            definition.heartbeat_ms,
            is_waiting=True,
            count_max=None,
            key_id=definition.key_id,
        )
        stream = open_stream()
        finder = self._streams.finder(selection)
        topics = TopicStreamStart(positions, {}, finder)
        one = TopicStream(self._streams, request, stream, topics, detach)
        self._sessions.attach(session, one)
        session.positions = one.positions
        session.has_memory = True
        finder.begin()
        one.begin(topics)
        return None


def positions_of(
    session: Session, selection: TopicSelection, last_event_id: str
) -> dict[str, StreamPosition] | Refusal:
    """Return where the next stream of the session begins, or refuse an id of another session (Q2)."""
    kept = session.positions
    if not last_event_id:
        return dict(kept)
    sent = read_stream_id(last_event_id)
    if sent is None or not all(map(selection.selects, sent)):
        return invalid("last-event-id", "must be the id of an event of this session")
    if not session.has_memory:
        return sent
    return {name: min(one, kept.get(name, one), key=_age) for name, one in sent.items()}


def _age(position: StreamPosition) -> StreamPosition:
    """Return what orders positions: epochs of a topic increase."""
    seq, epoch = position
    return epoch, seq
