"""Topic streams and watch sessions of one worker of a stage, opened by requests and read by a client.

Promises: `read` returns the events since the last call; a record line is an
event `record` with one record. `Event.id` is empty where the stream sent none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import Refusal
from shared.http.head import Fields
from shared.ipc.remote_request import decode_answer
from shared.ipc.watch_request import encode_watch_request
from tests.harness.stage.feed_shards import Event, FakeStream, read_event
from tests.harness.stage.shard_stage import ShardStage
from topicsd.service.call import Call
from topicsd.service.dispatch import Dispatch
from topicsd.service.watch.body import decode_watch
from topicsd.stream.stream import Stream

LINES = "application/x-ndjson"


class StreamCall(Call, kw_only=True, eq=False):
    """A request for a stream, with what the client receives."""

    client: StreamClient

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self.client.refusal = (status, msgspec.json.decode(b"".join(parts))["error"])

    def open_stream(self, fields: bytes) -> Stream:
        self.client.head = fields
        return self.client.stream


class StreamClient:
    """What the client of one request receives: a stream, or a refusal."""

    def __init__(self, *, is_lines: bool = False) -> None:
        self.stream = FakeStream()
        self.head = b""
        self.refusal: tuple[int, Any] = (0, None)
        self._is_lines = is_lines

    def read(self) -> list[Event]:
        text, self.stream.written = self.stream.written, b""
        if self._is_lines:
            assert text == b"" or text.endswith(b"\n")
            return [_read_line(line) for line in text.split(b"\n")[:-1]]
        assert text == b"" or text.endswith(b"\n\n")
        return [event for event in map(_read_block, text.split(b"\n\n")[:-1]) if event is not None]


class TopicStreamClient(StreamClient):
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
        super().__init__(is_lines=accept == LINES)
        fields = Fields(accept=accept, last_event_id=last_id)
        call = StreamCall(topic, urlencode(query), fields, b"", 0.0, client=self)
        opener = dispatch.streams.topic_stream_opener
        (opener.open_one if topic else opener.open_several)(call, key)


class SessionClient(StreamClient):
    """A stream on a watch session."""

    def __init__(self, dispatch: Dispatch, wid: str, *, last_id: str = "", key: ApiKey | None = None) -> None:
        super().__init__()
        call = StreamCall(wid, "", Fields(last_event_id=last_id), b"", 0.0, client=self)
        dispatch.streams.opener.open(call, key)


def create_session(
    stage: ShardStage, body: dict[str, Any], *, key: ApiKey | None = None, is_lenient: bool = False
) -> tuple[int, Any]:
    """Create a watch session at the first shard; return status and body of the response."""
    state = stage.shards[0].shard.state
    request = decode_watch(msgspec.json.encode(body), key, is_lenient, state.settings, state.clock)
    if isinstance(request, Refusal):
        return 400, request
    answers: list[bytes] = []
    creator = stage.workers[0].streams.creator
    creator.create_counted(encode_watch_request(request), answers.append)  # type: ignore[arg-type]
    stage.run_until_idle()
    status, _, answer = decode_answer(answers[0])
    return status, msgspec.json.decode(answer)


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
