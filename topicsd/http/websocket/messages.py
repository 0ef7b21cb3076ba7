"""Decode the messages of a WebSocket client: JSON objects whose `op` names the operation.

Every message may have a `request_id`, a string or a number, that the response repeats as it was written.
So it is decoded separately and first, and a refusal for any other field still includes it. Unknown fields
are refused, as in HTTP bodies.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from shared.contract.errors import Refusal, excluded, invalid
from shared.contract.json_bounds import may_hold_nul
from shared.contract.reader_options import ReaderOptions
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from shared.text.nearest_name import nearest_name
from topicsd.service.input.bodies import (
    PUBLISH_BODY,
    decode_append,
    refuse_node,
    refuse_nul_in,
)
from topicsd.service.input.json_body import JsonBody
from topicsd.service.watch.options import Position, StreamOptions

REQUEST_ID_BYTES_MAX: Final = 256

SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
PUBLISH: Final = "publish"
PING: Final = "ping"
OPS: Final = (SUBSCRIBE, UNSUBSCRIBE, PUBLISH, PING)

_NOTHING: Final = msgspec.Raw(b"")


class Envelope(NamedTuple):
    op: str
    request_id: bytes
    """As it was written; empty if there was none."""


class Publish(msgspec.Struct, gc=False):
    """The fields of a publish that this worker needs; the owner of the topic decodes all of it."""

    topic: str
    return_seqs: bool = True


class Subscribe(NamedTuple):
    positions: dict[str, Position]
    """By name or pattern."""
    options: ReaderOptions
    clamped: dict[str, int]
    is_waiting: bool
    """Whether topics that do not exist are waited for."""


class _Envelope(msgspec.Struct, gc=False):
    op: msgspec.Raw = _NOTHING
    request_id: msgspec.Raw = _NOTHING


class _Subscribe(StreamOptions, gc=False, kw_only=True):
    op: msgspec.Raw = _NOTHING
    request_id: msgspec.Raw = _NOTHING
    topic: str | None = None
    topics: str | list[str] | dict[str, Position] | None = None
    from_seq: int | None = None
    after_seq: int | None = None
    tail: bool = False
    epoch: int | None = None
    from_ts: int | str | None = None
    last: int | None = None
    missing: Literal["refuse", "wait"] = "refuse"


class _Unsubscribe(msgspec.Struct, forbid_unknown_fields=True):
    op: msgspec.Raw = _NOTHING
    request_id: msgspec.Raw = _NOTHING
    topic: str | None = None
    topics: str | list[str] | None = None


class _Ping(msgspec.Struct, forbid_unknown_fields=True):
    op: msgspec.Raw = _NOTHING
    request_id: msgspec.Raw = _NOTHING


_ENVELOPE: Final = JsonBody(_Envelope, '{"op":"ping"}')
_SUBSCRIBE: Final = JsonBody(_Subscribe, '{"op":"subscribe","topic":"orders","tail":true}')
_UNSUBSCRIBE: Final = JsonBody(_Unsubscribe, '{"op":"unsubscribe","topic":"orders"}')
_PING: Final = JsonBody(_Ping, '{"op":"ping"}')
_decode_text = msgspec.json.Decoder(str).decode
_decode_id = msgspec.json.Decoder(str | int | float | None).decode
_decode_publish = msgspec.json.Decoder(Publish).decode


def read_envelope(message: bytes) -> Envelope | Refusal:
    envelope = _ENVELOPE.decode_any(message)
    if isinstance(envelope, Refusal):
        return envelope
    request_id = bytes(envelope.request_id) or b"null"
    if len(request_id) > REQUEST_ID_BYTES_MAX:
        return invalid("request_id", f"must be at most {REQUEST_ID_BYTES_MAX} bytes, got {len(request_id)}")
    try:
        is_given = _decode_id(request_id) is not None
    except msgspec.DecodeError:
        return invalid("request_id", "must be a string or a number")
    return Envelope(_op_of(envelope.op), request_id if is_given else b"")


def _op_of(raw: msgspec.Raw) -> str:
    """Return the operation, or an empty string if it is not a known one."""
    try:
        text = _decode_text(raw) if len(raw) <= REQUEST_ID_BYTES_MAX else ""
    except msgspec.DecodeError:
        return ""
    return text if text in OPS else ""


def unknown_op(message: bytes) -> Refusal:
    """Return a refusal that names the operation nearest to that of the message."""
    envelope = _ENVELOPE.decode_any(message)
    if isinstance(envelope, Refusal):
        return envelope
    allowed = ", ".join(OPS)
    if not envelope.op:
        return invalid("op", f"is required, one of {allowed}")
    try:
        nearest = nearest_name(_decode_text(envelope.op), OPS)
    except msgspec.DecodeError:
        return invalid("op", f"must be a string, one of {allowed}")
    return invalid("op", f"must be one of {allowed}" + (f"; did you mean {nearest}?" if nearest else ""))


def read_publish(message: bytes, settings: Settings) -> Publish | Refusal:
    try:
        return _decode_publish(message)
    except (msgspec.DecodeError, RecursionError) as error:
        # The strict decoder says what is wrong: a misspelled `topic` is not just missing.
        refusal = decode_append(message, settings, PUBLISH_BODY)
        return refusal if isinstance(refusal, Refusal) else PUBLISH_BODY.explain(message, error)


def read_ping(message: bytes) -> Refusal | None:
    ping = _PING.decode_any(message)
    return ping if isinstance(ping, Refusal) else None


def read_subscribe(message: bytes, settings: Settings, clock: Clock) -> Subscribe | Refusal:
    request = _SUBSCRIBE.decode(message)
    if isinstance(request, Refusal):
        return request
    shared = Position(
        request.from_seq, request.after_seq, request.tail, request.epoch, request.from_ts, request.last
    )
    topics = request.topics
    if isinstance(topics, dict):
        # The position beside the topics applies to topics without a position of their own.
        positions = {
            name: shared if position == Position() else position for name, position in topics.items()
        }
        if request.topic is not None:
            return excluded("topics", "topic")
    else:
        names = _names(request.topic, topics)
        if isinstance(names, Refusal):
            return names
        positions = dict.fromkeys(names, shared)
    nodes = sorted(request.nodes)
    refusal = (
        _settle_positions(positions, shared, settings.max_watch_topics, clock)
        or _refuse_nodes(nodes, message, settings)
        or request.resolve()
    )
    return refusal or Subscribe(
        positions,
        request.reader_options(settings.max_limit),
        request.clamped(settings.max_limit),
        request.missing == "wait",
    )


def read_unsubscribe(message: bytes) -> list[str] | Refusal:
    request = _UNSUBSCRIBE.decode(message)
    return request if isinstance(request, Refusal) else _names(request.topic, request.topics)


def _names(topic: str | None, topics: str | list[str] | None) -> list[str] | Refusal:
    if (topic is None) == (topics is None):
        if topics is None:
            return invalid("topics", "is required, unless topic is sent")
        return excluded("topics", "topic")
    if topics is None:
        assert topic is not None
        return [topic]
    return [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))


def _settle_positions(
    positions: dict[str, Position], shared: Position, topics_max: int, clock: Clock
) -> Refusal | None:
    if not positions:
        return invalid("topics", "must not be empty")
    if len(positions) > topics_max:
        return too_many_topics(len(positions), topics_max)
    for name, position in positions.items():
        refusal = position.resolve("" if position is shared else f"topics.{name[:256]}.", clock)
        if refusal is not None:
            return refusal
    return None


def too_many_topics(count: int, topics_max: int) -> Refusal:
    return invalid("topics", f"must be at most {topics_max} on one connection, got {count}", topics_max)


def _refuse_nodes(nodes: list[str], message: bytes, settings: Settings) -> Refusal | None:
    for node in nodes:
        refusal = refuse_node(node, settings.max_node_bytes)
        if refusal is not None:
            return refusal
    return refuse_nul_in("node", nodes) if may_hold_nul(message) else None
