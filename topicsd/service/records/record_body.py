"""The body of a request for `/v0/topics/:topic/records`, which is checked and taken as it arrives."""

from __future__ import annotations

from collections.abc import Callable

from shared.contract.endpoints import Match, refuse_parameters
from shared.contract.errors import Refusal, invalid
from shared.http.body import BodySink, sink_of, too_large
from shared.http.head import Fields
from topicsd.service.dispatch import Dispatch
from topicsd.service.input.line_records import LINES
from topicsd.service.input.line_records import is_lines as is_lines
from topicsd.service.input.record_upload import record_query
from topicsd.service.records.line_upload import LineUpload


def record_sink(
    dispatch: Dispatch, match: Match | Refusal, fields: Fields, query: str, on_change: Callable[[], None]
) -> BodySink | LineUpload | Refusal:
    """Return what takes the bytes of a body, or refuse what the handler would refuse anyway.

    An upload calls `on_change` when it can take more again, or has failed.
    """
    assert not isinstance(match, Refusal)
    settings = dispatch.handlers.settings
    refusal = dispatch.refuse_key(match, fields, query)
    if query:
        refusal = refusal or refuse_parameters(match.endpoint, query)
    about = refusal or record_query(fields, query, settings)
    if isinstance(about, Refusal):
        return about
    if is_lines(fields):
        if fields.content_digest:
            return invalid("content-digest", f"must not be sent with {LINES}, whose lines are written early")
        return LineUpload(dispatch, match, fields, about.batch_query, on_change)
    bytes_max = dispatch.handlers.shard.spool.record_bytes_max
    if (fields.content_length or 0) > bytes_max:
        return too_large(bytes_max)
    return sink_of(fields, dispatch.handlers.shard.spool.sink())
