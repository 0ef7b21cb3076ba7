"""A read's response as CloudEvents: what was appended as an event as it was sent, other records as events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from shared.text.instant import rfc_3339
from topicsd.engine.requests import ReadAnswer, RenderedRecord
from topicsd.service.input.cloud_events import META_KEY, NO_DATA_KEY, SPEC_VERSION
from topicsd.service.render import encode
from topicsd.stream.chunks import Chunk

DEFAULT_TYPE: Final = "topicsd.record"
_decode: Final = msgspec.json.Decoder(list[RenderedRecord]).decode


class _Meta(msgspec.Struct):
    attributes: dict[str, msgspec.Raw] = msgspec.field(name=META_KEY)


_decode_meta: Final = msgspec.json.Decoder(_Meta).decode


def events_of(result: ReadAnswer | Chunk, records: Iterable[bytes | memoryview]) -> bytes:
    """Return records, which are separated by commas, as a list of events, and a line end."""
    events = [_event(result, record) for record in _decode(b"[%b]" % b"".join(records))]
    return encode(events) + b"\n"


def _event(result: ReadAnswer | Chunk, record: RenderedRecord) -> dict[str, object]:
    event: dict[str, object]
    try:
        event = dict(_decode_meta(record.meta).attributes)
    except msgspec.DecodeError:
        event = {
            "specversion": SPEC_VERSION,
            "id": f"{result.epoch}-{record.seq}",
            "source": f"/v0/topics/{result.topic}",
            "type": record.tag or DEFAULT_TYPE,
            "time": rfc_3339(record.ts),
        }
    if event.pop(NO_DATA_KEY, None) is None:
        if record.is_bytes:
            event["data_base64"] = record.data_base64
        else:
            event["data"] = record.data
    return event
