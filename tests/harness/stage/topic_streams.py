"""Topic streams of one worker of a stage, opened by requests and read by a client.

Promises: `read` returns the events since the last call; a record line is an
event `record` with one record. `Event.id` is empty where the stream sent none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from shared.contract.api_keys import ApiKey
from shared.http.head import Fields
from tests.harness.stage.feed_shards import Event, FakeStream, read_event
from topicsd.service.call import Call
from topicsd.service.dispatch import Dispatch
from topicsd.stream.stream import Stream

LINES = "application/x-ndjson"


class StreamCall(Call, kw_only=True, eq=False):
    """A request for a stream, with what the client receives."""

    client: TopicStreamClient

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.client.refusal = (status, msgspec.json.decode(b"".join(parts))["error"])

    def open_stream(self, fields: bytes) -> Stream:
        self.client.head = fields
        return self.client.stream


class TopicStreamClient:
    """One request. `topic` is that of the path; without it the query has `topics`."""

    def __init__(
        self,
        dispatch: Dispatch,
        topic: str = "",
        *,
        accept: str = "",
        last_id: str = "",
        key: ApiKey | None = None,
        **query: Any,
    ) -> None:
        self.stream = FakeStream()
        self.head = b""
        self.refusal: tuple[int, Any] = (0, None)
        self._is_lines = accept == LINES
        fields = Fields(accept=accept, last_event_id=last_id)
        call = StreamCall(topic, urlencode(query), fields, b"", 0.0, client=self)
        opener = dispatch.streams.topic_stream_opener
        (opener.open_one if topic else opener.open_several)(call, key)

    def read(self) -> list[Event]:
        text, self.stream.written = self.stream.written, b""
        if self._is_lines:
            assert text == b"" or text.endswith(b"\n")
            return [_read_line(line) for line in text.split(b"\n")[:-1]]
        assert text == b"" or text.endswith(b"\n\n")
        return [event for event in map(_read_block, text.split(b"\n\n")[:-1]) if event is not None]


def _read_line(line: bytes) -> Event:
    fields = msgspec.json.decode(line)
    if "$event" not in fields:
        assert line.startswith((b'{"$seq":', b'{"$topic":'))
        topic = fields.pop("$topic", "")
        return Event("", "record", {"topic": topic, "records": [fields], "to_seq": fields["$seq"]})
    assert line.startswith(b'{"$event":')
    assert "$seq" not in fields
    return Event(fields.pop("id"), fields.pop("$event"), fields)


def _read_block(block: bytes) -> Event | None:
    """Read an event; a comment with an id is an event `heartbeat`."""
    comment, _, id_ = block.decode().partition("\n")
    if id_.startswith("id: ") and comment.startswith(": hb "):
        return Event(id_.removeprefix("id: "), "heartbeat", None)
    return read_event(block)


def records_of(events: Sequence[Event]) -> list[tuple[str, int]]:
    """Return the topics and seqs of the records in these events."""
    return [
        (event.data["topic"], record["$seq"])
        for event in events
        if event.name == "record"
        for record in event.data["records"]
    ]


def names_of(events: Sequence[Event]) -> list[str]:
    return [event.name for event in events]
