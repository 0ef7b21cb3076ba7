"""Answers as bytes. What every write and read answers is formatted by hand, the rest is encoded from structs.

Must not know: sockets, who asked.
"""

from __future__ import annotations

import msgspec

from shared.contract import TopicConfig
from shared.errors import STATUS, Refusal
from shared.http_answer import refusal_body, refusal_fields
from topicsd.engine.requests import Appended, ReadAnswer

encode = msgspec.json.Encoder().encode
_BOOL = (b"false", b"true")


def render_appended(answer: Appended, with_seqs: bool, elapsed_us: int) -> bytes:
    first, last = answer.first_seq, answer.last_seq
    seqs = b""
    if with_seqs:
        seqs = b'"seqs":[%b],' % (
            b"%d" % first if first == last else b",".join([b"%d" % seq for seq in range(first, last + 1)])
        )
    return (
        b'{"topic":"%b","first_seq":%d,"last_seq":%d,%b"head_seq":%d,"count":%d,"created":%b,"deduped":%b,'
        b'"durability":"%b","performance":{"server_total_ms":%d.%03d}}'
        % (
            answer.topic.encode(),
            first,
            last,
            seqs,
            answer.head_seq,
            last - first + 1,
            _BOOL[answer.created],
            _BOOL[answer.deduped],
            answer.durability.encode(),
            elapsed_us // 1000,
            elapsed_us % 1000,
        )
    )


def render_read(answer: ReadAnswer, elapsed_us: int) -> list[bytes | memoryview]:
    """The parts of the body, never joined."""
    records = answer.parts
    if records:
        records[-1] = records[-1][:-1]  # The comma behind the last one.
    return [
        b'{"topic":"%b","epoch":%d,"records":[' % (answer.topic.encode(), answer.epoch),
        *records,
        b'],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d,'
        b'"performance":{"server_total_ms":%d.%03d}}'
        % (
            answer.next_from_seq,
            answer.head_seq,
            answer.earliest_seq,
            _BOOL[answer.caught_up],
            b"null" if answer.tombstone is None else encode(answer.tombstone),
            answer.lag,
            elapsed_us // 1000,
            elapsed_us % 1000,
        ),
    ]


def render_config(config: TopicConfig) -> dict[str, object]:
    """Every field, and `durable`, which is not stored."""
    return {**msgspec.structs.asdict(config), "durable": config.durable}


def render_refusal(refusal: Refusal) -> tuple[int, bytes, bytes]:
    """Status, body and the fields that go with it."""
    body = encode({**refusal_body(refusal), "performance": {}})
    return STATUS[refusal.code], body, refusal_fields(refusal)
