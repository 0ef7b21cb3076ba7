r"""One request of a webhook: its body, its id, and its signature.

A body has the records of one chunk as a read renders them, as an object or as lines, and a lost range.

    >>> records = b'{"$seq":5,"$ts":9,"data":1},{"$seq":6,"$ts":9,"data":2}'
    >>> chunk = Chunk("orders", 3, 4, 6, 6, 1, 2, records, None)
    >>> render_body("billing", chunk, is_lines=False).decode()[:70]
    '{"router":"billing","topic":"orders","epoch":3,"records":[{"$seq":5,"$'
    >>> render_body("billing", chunk, is_lines=True).splitlines()[1].decode()
    '{"$topic":"orders","$epoch":3,"$seq":6,"$ts":9,"data":2}'

The header fields are those of Standard Webhooks: `webhook-id`, `webhook-timestamp`, and `webhook-signature`,
the HMAC-SHA256 of `id.timestamp.body`. A repeated request has the id of the first one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import Refusal
from shared.contract.route_rule import RouteRule
from shared.http.webhook_target import secret_key
from topicsd.stream.chunks import Chunk, split_records
from topicsd.stream.sse_frames import tombstone_fields

_encode: Final = msgspec.json.Encoder().encode


class WebhookRequest(NamedTuple):
    """One request, as the client sends it."""

    url: str
    fields: dict[str, str]
    body: bytes
    timeout_ms: int


def render_body(router: str, chunk: Chunk, *, is_lines: bool) -> bytes:
    return _lines(chunk) if is_lines else _object(router, chunk)


def _object(router: str, chunk: Chunk) -> bytes:
    return b'{"router":%b,"topic":"%b","epoch":%d,"records":[%b],"next_from_seq":%d,"tombstone":%b}' % (
        _encode(router),
        chunk.topic.encode(),
        chunk.epoch,
        chunk.records,
        chunk.to_seq,
        _encode(chunk.tombstone),
    )


def _lines(chunk: Chunk) -> bytes:
    topic = chunk.topic.encode()
    lines = []
    if chunk.tombstone is not None:
        fields = {"$event": "tombstone", "epoch": chunk.epoch, **tombstone_fields(chunk.tombstone, chunk)}
        lines.append(_encode(fields))
    if chunk.count:
        beginning = b'{"$topic":"%b","$epoch":%d,' % (topic, chunk.epoch)
        lines += [
            beginning + record[1:].replace(b"\r", b" ").replace(b"\n", b" ")
            for record in split_records(chunk.records)
        ]
    return b"\n".join(lines) + b"\n"


def request_id(rule: RouteRule, chunk: Chunk) -> str:
    """Return the id of the request with a chunk, the same in every repetition, also after a restart."""
    text = f"{rule.name}\n{chunk.topic}\n{chunk.epoch}\n{chunk.from_seq}\n{chunk.to_seq}"
    return "msg_" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def signature(key: bytes, request: str, seconds: int, body: bytes) -> str:
    """Return the value of `webhook-signature`.

    >>> key = secret_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    >>> signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    content = b"%b.%d.%b" % (request.encode(), seconds, body)
    digest = hmac.new(key, content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def signed_request(rule: RouteRule, chunk: Chunk, now_ms: int) -> WebhookRequest:
    webhook = rule.webhook
    assert webhook is not None
    key = secret_key(webhook.secret)
    assert not isinstance(key, Refusal)
    body = render_body(rule.name, chunk, is_lines=webhook.is_lines)
    request, seconds = request_id(rule, chunk), now_ms // 1000
    fields = {
        "content-type": "application/x-ndjson" if webhook.is_lines else "application/json",
        "webhook-id": request,
        "webhook-timestamp": str(seconds),
        "webhook-signature": signature(key, request, seconds, body),
    }
    return WebhookRequest(rule.dest, fields, body, webhook.timeout_ms)
