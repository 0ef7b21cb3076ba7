"""The checks of a request whose body is a record, before its body is read."""

from __future__ import annotations

from shared.contract.errors import Refusal
from shared.http.body import too_large
from shared.http.head import Fields
from topicsd.http.http1.head_cache import KnownLine
from topicsd.service.dispatch import Dispatch
from topicsd.service.input.record_upload import refuse_record_type


def refuse_record(dispatch: Dispatch, known: KnownLine, fields: Fields) -> Refusal | None:
    """Refuse a body that the handler would refuse anyway: it may be large."""
    assert not isinstance(known.match, Refusal)
    bytes_max = dispatch.handlers.shard.spool.record_bytes_max
    refusal = None
    if dispatch.keys.are_required:
        refusal = dispatch.refuse_key(known.match, fields, known.line.query)
    refusal = refusal or refuse_record_type(fields)
    if refusal is None and (fields.content_length or 0) > bytes_max:
        refusal = too_large(bytes_max)
    return refusal
