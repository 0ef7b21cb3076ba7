"""`POST /consume`: records of several partitions from their offsets on, with one wait for all of them.

O1  A partition whose offset is past its next one, or that does not exist, is a failure, and answers the
    request at once: it would wait for records that it does not mean.
O2  What retention removed and what is damaged is in `lost`, between the offset and `next_offset`. What a
    client deleted is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import POSITION_PAST_HEAD, Refusal
from topicsd.broker.broker import Broker
from topicsd.broker.read.reader import ReadWait, SharedRead, TopicRead, TopicRecords
from topicsd.broker.read.text_runs import TextRun
from topicsd.log.frame import Record
from topicsd.service.call import Call
from topicsd.service.input.bodies import refuse_media_type
from topicsd.service.render import encode
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.partition_bodies import ConsumeBody, RequestedRecords, decode_consume
from topicsd.service.shared.partition_results import PartitionFailure, failure, send_results

_QUOTE: Final = ord('"')
_ENDS_OF_OFFSETS: Final = [b'%03d,"value":' % number for number in range(1000)]

_OnRead = Callable[[list[TopicRecords]], object]


class _Lost(msgspec.Struct, gc=False):
    first_offset: int
    last_offset: int
    reason: str


class _BytesRecord(msgspec.Struct, gc=False):
    offset: int
    base64: bytes


class _PartitionEnd(msgspec.Struct, gc=False):
    """The members of the result of a partition after its records."""

    next_offset: int
    high_watermark: int
    lost: list[_Lost] | UnsetType


class ConsumeHandler:
    def __init__(self, broker: Broker, counts: RequestCounts) -> None:
        self._broker = broker
        self._counts = counts

    def start(self, call: Call) -> None:
        self._broker.counts.consume_requests += 1
        decoded = refuse_media_type(call.fields, call.body) or decode_consume(call.body, call.prefixes)
        if isinstance(decoded, Refusal):
            call.refuse(decoded)
            return
        _Consume(self._broker, self._counts, call, *decoded).start()


class _Consume:
    """One request on its way to its answer."""

    def __init__(
        self,
        broker: Broker,
        counts: RequestCounts,
        call: Call,
        request: ConsumeBody,
        reads: list[RequestedRecords],
    ) -> None:
        self._broker = broker
        self._counts = counts
        self._call = call
        self._request = request
        self._reads = reads
        self._wait = ReadWait(broker.heads)

    def start(self) -> None:
        waits = bool(self._request.max_wait_ms and self._request.min_bytes)
        if waits:
            # It is answered with what is known then: the process ends, or the client is gone.
            self._call.cancel_wait = self._wait.cancel
        if waits and any(map(self._may_be_past_head, self._reads)):
            self._read(0, self._on_first_read)
        else:
            self._read(self._request.max_wait_ms, self._send)

    def _may_be_past_head(self, one: RequestedRecords) -> bool:
        topic = self._broker.topics.known(one.name)
        head = 0 if topic is None else self._broker.heads.head(one.name, topic.incarnation)
        return one.fetch_offset > head + 1

    def _on_first_read(self, answers: list[TopicRecords]) -> None:
        byte_count = sum(answer.byte_count for answer in answers)
        is_enough = byte_count >= self._request.min_bytes or any(map(_is_report, answers))
        if is_enough or self._wait.is_cancelled():
            self._send(answers)
        else:
            self._read(self._request.max_wait_ms, self._send)

    def _read(self, wait_ms: int, reply: _OnRead) -> None:
        request = self._request
        topics = [TopicRead(one.name, one.fetch_offset, one.bytes_max, as_runs=True) for one in self._reads]
        read = SharedRead(topics, request.min_bytes, request.max_bytes, wait_ms / 1000)
        self._broker.read(read, reply, self._wait)

    def _send(self, answers: list[TopicRecords]) -> None:
        self._call.cancel_wait = None
        try:
            parts: list[bytes] = []
            failures: list[PartitionFailure] = []
            for one, answer in zip(self._reads, answers, strict=True):
                refusal = answer.refusal or _past_head(answer)
                if refusal is None:
                    parts.append(_render(one, answer))
                else:
                    failures.append(failure(one.topic, one.partition, refusal))
                    parts.append(encode(failures[-1]))
            counts = self._broker.counts
            counts.consume_records += sum(map(_record_count, answers))
            counts.consume_bytes += sum(answer.byte_count for answer in answers)
            counts.consume_errors += len(failures)
            has_waited = any(answer.has_waited for answer in answers)
            counts.consume_waits += has_waited
            if len(failures) < len(parts):
                self._counts.read(self._call, has_waited=has_waited)
            send_results(self._call, parts, failures, len(parts) - len(failures))
        except Exception as error:
            self._call.fail("consume", error)


def _is_report(answer: TopicRecords) -> bool:
    return answer.refusal is not None or bool(answer.lost) or _past_head(answer) is not None


def _past_head(answer: TopicRecords) -> Refusal | None:
    """Refuse an offset after the next one of its partition."""
    if answer.refusal is not None or answer.next_seq <= answer.head + 1:
        return None
    rule = f"must be at most {answer.head + 1}, the next offset, got {answer.next_seq}"
    return Refusal(POSITION_PAST_HEAD, f"fetch_offset: {rule}")


def _record_count(answer: TopicRecords) -> int:
    return sum([len(run.values if isinstance(run, TextRun) else run) for run in answer.runs])


def _render(one: RequestedRecords, answer: TopicRecords) -> bytes:
    lost = [_Lost(*msgspec.structs.astuple(each)) for each in answer.lost]
    end = _PartitionEnd(answer.next_seq, answer.head, lost or UNSET)
    parts = [b'{"topic":%b,"partition":%d,"ok":true,"records":[' % (encode(one.topic), one.partition)]
    for run in answer.runs:
        if len(parts) > 1:
            parts.append(b",")
        parts += _text_parts(run) if isinstance(run, TextRun) else [b",".join(map(_render_record, run))]
    parts.append(b"],%b" % encode(end)[1:])
    return b"".join(parts)


def _text_parts(run: TextRun) -> list[bytes]:
    """Return the records as parts: what is before the value of each, and the value."""
    values = run.values
    if not run.are_strings and [value for value in values if value[0] != _QUOTE]:
        values = [value if value[0] == _QUOTE else encode(value.decode()) for value in values]
    whole: list[bytes] = []
    at, seq = 0, run.first_seq
    # Offsets of one thousand have one beginning, and ends that are known: a third of the time of formatting.
    while at < len(values):
        thousand, low = divmod(seq, 1000)
        ends = _ENDS_OF_OFFSETS[low : low + len(values) - at]
        start = b'},{"offset":%d' % thousand
        if not thousand:
            start, ends = start[:-1], [end.lstrip(b"0") for end in ends]
        parts = [start] * (3 * len(ends))
        parts[1::3] = ends
        parts[2::3] = values[at : at + len(ends)]
        whole += parts
        at, seq = at + len(ends), seq + len(ends)
    whole[0] = whole[0][2:]
    whole.append(b"}")
    return whole


def _render_record(record: Record) -> bytes:
    data = record.data
    if record.is_bytes:
        return encode(_BytesRecord(record.seq, data))
    # A JSON string is the text already; other JSON is text that has to become one.
    value = data if data[0] == _QUOTE else encode(data.decode())
    return b'{"offset":%d,"value":%b}' % (record.seq, value)
