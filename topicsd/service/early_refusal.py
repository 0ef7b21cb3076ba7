"""The checks of a request whose body is a record, before its body is read."""

from __future__ import annotations

from shared.contract.endpoints import Match, refuse_parameters
from shared.contract.errors import Refusal
from shared.http.body import too_large
from shared.http.head import Fields
from topicsd.service.dispatch import Dispatch
from topicsd.service.input.record_upload import refuse_record_type


def refuse_record(dispatch: Dispatch, match: Match | Refusal, fields: Fields, query: str) -> Refusal | None:
    """Refuse a body that the handler would refuse anyway: it may be large."""
    assert not isinstance(match, Refusal)
    bytes_max = dispatch.handlers.shard.spool.record_bytes_max
    refusal = dispatch.refuse_key(match, fields, query) if dispatch.keys.are_required else None
    if query:
        refusal = refusal or refuse_parameters(match.endpoint, query)
    refusal = refusal or refuse_record_type(fields)
    if refusal is None and (fields.content_length or 0) > bytes_max:
        refusal = too_large(bytes_max)
    return refusal
