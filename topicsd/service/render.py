"""Responses as bytes, encoded from structs in field order. Records are bytes already."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import STATUS, Refusal
from shared.contract.topic_config import TopicConfig
from shared.http.answer import refusal_body, refusal_fields
from topicsd.engine.requests import AppendAnswer, ReadAnswer, Tombstone, TopicState
from topicsd.log.batch import UNTIMED, CommitTimes
from topicsd.stream.chunks import RECREATED, Chunk

encode = msgspec.json.Encoder().encode


class _Performance(msgspec.Struct, gc=False):
    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET


class _ReadPerformance(msgspec.Struct, gc=False):
    server_total_ms: float
    records_scanned: int


class _AppendBody(msgspec.Struct, gc=False):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType
    head_seq: int
    count: int
    created: bool
    deduped: bool
    durability: str
    performance: _Performance


class _ReadEnd(msgspec.Struct, gc=False):
    """The members of a read's response after its records."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    performance: _ReadPerformance


def render_appended(
    answer: AppendAnswer,
    with_seqs: bool,
    elapsed_us: int,
    times: CommitTimes = UNTIMED,
) -> bytes:
    first, last = answer.first_seq, answer.last_seq
    if not first:
        return encode(_duplicate(answer, with_seqs, elapsed_us))
    return encode(
        _AppendBody(
            answer.topic,
            first,
            last,
            UNSET if not with_seqs else [first] if first == last else list(range(first, last + 1)),
            answer.head_seq,
            last - first + 1,
            answer.created,
            answer.deduped,
            answer.durability,
            _Performance(elapsed_us / 1000, times.write, times.sync, times.throttle),
        )
    )


def _duplicate(answer: AppendAnswer, with_seqs: bool, elapsed_us: int) -> _AppendBody:
    """Return the response to a duplicate of a write whose seqs are no longer known."""
    seqs: list[int] | UnsetType = [] if with_seqs else UNSET
    performance = _Performance(elapsed_us / 1000)
    return _AppendBody(
        answer.topic, 0, 0, seqs, answer.head_seq, 0, False, True, answer.durability, performance
    )


def render_read(answer: ReadAnswer, from_seq: int, elapsed_us: int) -> list[bytes | memoryview]:
    """Return the parts of a read's response; they are not joined."""
    records = answer.parts
    if records:
        records[-1] = records[-1][:-1]  # Remove the comma after the last record.
    return _read(answer, from_seq, answer.next_from_seq, records, elapsed_us)


def render_chunk(chunk: Chunk, elapsed_us: int) -> list[bytes | memoryview]:
    """Return the parts of a response with a chunk, whose records several waiting reads share."""
    return _read(chunk, chunk.from_seq, chunk.to_seq, [chunk.records], elapsed_us)


def _read(
    result: ReadAnswer | Chunk,
    from_seq: int,
    next_from: int,
    records: Sequence[bytes | memoryview],
    elapsed_us: int,
) -> list[bytes | memoryview]:
    head = result.head_seq
    earliest, tombstone = result.earliest_seq, result.tombstone
    is_plain = tombstone is None and from_seq >= earliest - 1
    scanned = next_from - from_seq if is_plain else _count_scanned(result, from_seq, next_from)
    end = _ReadEnd(
        next_from,
        head,
        earliest,
        next_from == head,
        tombstone,
        head - next_from,
        _ReadPerformance(elapsed_us / 1000, scanned),
    )
    return [
        b'{"topic":"%b","epoch":%d,"records":[' % (result.topic.encode(), result.epoch),
        *records,
        b"]," + encode(end)[1:],
    ]


def _count_scanned(result: ReadAnswer | Chunk, from_seq: int, next_from: int) -> int:
    """Return the number of seqs that the read covered, without those below the earliest seq."""
    first = result.earliest_seq - 1
    if result.tombstone is None or result.tombstone.reason != RECREATED:
        first = max(first, from_seq)
    return max(0, next_from - first)


def render_config(config: TopicConfig) -> dict[str, object]:
    """Return every field, and `durable`, which is not stored."""
    return {**config.members(), "durable": config.durable}


def render_queue(state: TopicState) -> dict[str, object]:
    """Return the job counts of a queue. Rare states appear only when their count is not 0."""
    counts = state.queue
    if counts is None:
        return {}
    queue: dict[str, int] = {
        "ready": counts.ready,
        "in_flight": counts.in_flight,
        "dead_lettered": counts.dead_lettered,
    }
    if counts.delayed:
        queue["delayed"] = counts.delayed
    if counts.blocked:
        queue["blocked"] = counts.blocked
    if counts.parked:
        queue["parked"] = counts.parked
    if counts.ready:
        queue["oldest_ready_ms"] = state.oldest_ready_ms
    return {"queue": queue}


def render_refusal(refusal: Refusal) -> tuple[int, bytes, bytes]:
    """Return the status, the body and the header fields of a refusal."""
    return STATUS[refusal.code], encode(refusal_body(refusal)), refusal_fields(refusal)
