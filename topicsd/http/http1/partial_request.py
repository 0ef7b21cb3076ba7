"""A request whose body is read incrementally, and what takes its bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shared.contract.errors import Refusal
from shared.http.body import Body, ChunkedBody, LengthBody, PlainSink, SharedSink, sink_of
from topicsd.http.http1.head_cache import KnownFields, KnownLine
from topicsd.service.dispatch import Dispatch
from topicsd.service.records.line_upload import LineUpload
from topicsd.service.records.record_body import record_sink


class PartialRequest(NamedTuple):
    known_line: KnownLine
    known_fields: KnownFields
    body: Body
    upload: LineUpload | None
    """What appends the lines of the body as they arrive, if it has lines."""

    def feed(self, data: bytes, at: int) -> int | Refusal:
        """Consume the body's bytes in `data` from `at`; return the offset of the rest.

        A refusal stops an upload, which says how far it got: at once, or after the batch on its way.
        """
        next_at = self.body.feed(data, at)
        if isinstance(next_at, Refusal) and self.upload is not None:
            self.upload.stop(next_at)
            return self.upload.refusal or len(data)
        return next_at

    @property
    def is_stopping(self) -> bool:
        """Return whether an upload has failed and will be answered."""
        return self.upload is not None and self.upload.is_stopping


def partial_request(
    dispatch: Dispatch, known: KnownLine, known_fields: KnownFields, on_change: Callable[[], None]
) -> PartialRequest | Refusal:
    """Return a request without its body, or refuse it; an upload calls `on_change`.

    The append of another worker is gathered in memory to share with it, and a record in the spool.
    """
    fields = known_fields.fields
    upload = None
    if known.is_record:
        sink = record_sink(dispatch, known.match, fields, known.line.query, on_change)
        if isinstance(sink, Refusal):
            return sink
        if isinstance(sink, LineUpload):
            upload = sink
    else:
        bytes_max = dispatch.handlers.body_bytes_max
        is_elsewhere = known.is_append and known.owner != dispatch.shard
        sink = sink_of(fields, SharedSink(bytes_max) if is_elsewhere else PlainSink(bytes_max))
    body = ChunkedBody(sink) if fields.is_chunked else LengthBody(fields.content_length or 0, sink)
    return PartialRequest(known, known_fields, body, upload)


def refuse_early(dispatch: Dispatch, partial: PartialRequest) -> Refusal | None:
    """Return why a client that sent `Expect: 100-continue` may not send its body, or None."""
    known = partial.known_line
    match = known.match
    if isinstance(match, Refusal):
        return match
    return dispatch.refuse_key(match, partial.known_fields.fields, known.line.query)
