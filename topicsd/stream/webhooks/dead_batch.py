"""A batch that no receiver accepted, as an append to the dead-letter topic of its webhook.

Each record keeps its data, tag, node and meta. The meta also names the origin, under `$webhook`, unless it
would then exceed a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import Refusal
from shared.contract.route_rule import RouteRule, WebhookStatus
from topicsd.engine.requests import NO_META, CopiedRecord
from topicsd.stream.chunks import Chunk

_decode: Final = msgspec.json.Decoder(list[CopiedRecord]).decode
_encode: Final = msgspec.json.Encoder().encode


class DeadBatch(NamedTuple):
    """An append to the dead-letter topic `topic`, which is repeated until it is answered."""

    topic: str
    request: str
    """The id of the requests that failed."""
    body: bytes

    @property
    def idempotency_key(self) -> str:
        """Return the key with which a repetition appends nothing; a key belongs to one body."""
        return f"{self.request}-{blake2b(self.body, digest_size=8).hexdigest()}"


StoreDeadBatch = Callable[[DeadBatch, Callable[[Refusal | None], object]], object]
"""Appends a batch; the callback gets None, or why it is not appended."""


def append_body(
    rule: RouteRule, chunk: Chunk, status: WebhookStatus, meta_bytes_max: int, record_bytes_max: int
) -> bytes:
    origin: dict[str, object] = {
        "router": rule.name,
        "topic": chunk.topic,
        "epoch": chunk.epoch,
        "attempts": status.attempts,
        "error": status.last_error,
    }
    records = []
    for record in _decode(b"[%b]" % chunk.records):
        meta = b"" if record.meta is NO_META else bytes(record.meta)
        stamped = stamped_meta(meta, {**origin, "seq": record.seq})
        size = len(record.data or record.data_base64) + len(stamped)
        if len(stamped) <= meta_bytes_max and size <= record_bytes_max:
            meta = stamped
        fields: dict[str, object] = {"tag": record.tag, "node": record.node}
        fields = {name: value for name, value in fields.items() if value is not None}
        if bytes(record.data):
            fields["data"] = record.data
        else:
            fields["data_base64"] = record.data_base64
        if meta:
            fields["meta"] = msgspec.Raw(meta)
        records.append(fields)
    return _encode({"records": records})


def stamped_meta(meta: bytes, origin: dict[str, object]) -> bytes:
    """Return a meta with an origin added, after what the writer put there.

    >>> stamped_meta(b'{"k":1.0}', {"seq": 7}), stamped_meta(b" ", {"seq": 7})
    (b'{"k":1.0,"$webhook":{"seq":7}}', b'{"$webhook":{"seq":7}}')
    """
    before = meta.strip()[1:-1].strip()
    return b'{%b"$webhook":%b}' % (before + b"," if before else b"", _encode(origin))
