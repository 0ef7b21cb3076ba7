"""The read of one record, and of the bounds of a topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic

import msgspec

from shared.contract.errors import NOT_FOUND, Refusal, invalid
from shared.contract.query import query_text
from shared.contract.reader_options import ReaderOptions
from shared.contract.seek import Seek
from shared.contract.topic_config import NUMBER_MAX
from shared.text.message import quoted
from topicsd.engine.requests import ReadAnswer, ReadRequest, RenderedRecord
from topicsd.service.call import CONTENT_TYPE, Call, Performance, reply_of
from topicsd.service.diff import M, TopicReads
from topicsd.service.input.record_upload import OCTETS
from topicsd.service.render import encode

_OCTETS_FIELD = CONTENT_TYPE + OCTETS.encode() + b"\r\n"
_DIGITS_MAX = 16
_FORMS = {None: False, "data": False, "record": True}


class RecordReader(Generic[M]):
    def __init__(self, reads: TopicReads[M], performance: Performance) -> None:
        self._reads = reads
        self._performance = performance
        self.table: dict[str, Callable[[Call], None]] = {
            "record": self._start_record,
            "bounds": self._start_bounds,
        }

    def _read_one(
        self, call: Call, from_seq: int, is_whole: bool, on_answer: Callable[[ReadAnswer], object]
    ) -> None:
        options = ReaderOptions(limit=1, with_tags=is_whole, with_meta=is_whole)
        request = ReadRequest(from_seq, options)
        answer = self._reads.try_read(call.name, request)
        if isinstance(answer, ReadAnswer):
            on_answer(answer)
        elif isinstance(answer, Refusal):
            call.refuse(answer)
        else:
            self._reads.read(call.name, request, reply_of(call, on_answer), answer)

    # -- one record ----------------------------------------------------------------------------------------

    def _start_record(self, call: Call) -> None:
        seq = seq_of(call.item)
        is_whole = _is_whole(call.query) if call.query else False
        refusal = seq if isinstance(seq, Refusal) else is_whole
        if isinstance(refusal, Refusal):
            call.refuse(refusal)
            return
        assert isinstance(seq, int)
        assert isinstance(is_whole, bool)
        self._read_one(call, seq - 1, is_whole, partial(self._answer_record, call, seq, is_whole))

    def _answer_record(self, call: Call, seq: int, is_whole: bool, answer: ReadAnswer) -> None:
        self._reads.note_read(call.name)
        record = next((one for one in answer.rendered() if one.seq == seq), None)
        if record is not None and is_whole:
            # The only record of the answer, with the comma after it.
            call.send(b"".join(answer.parts)[:-1])
        else:
            send_record(call, seq, record)

    # -- bounds --------------------------------------------------------------------------------------------

    def _start_bounds(self, call: Call) -> None:
        self._read_one(call, 0, False, partial(self._on_first, call))

    def _on_first(self, call: Call, first: ReadAnswer) -> None:
        reply = reply_of(call, partial(self._on_last_position, call, first))
        self._reads.seek(call.name, Seek(None, 1), reply)

    def _on_last_position(self, call: Call, first: ReadAnswer, from_seq: int) -> None:
        self._read_one(call, from_seq, False, partial(self._answer_bounds, call, first))

    def _answer_bounds(self, call: Call, first: ReadAnswer, last: ReadAnswer) -> None:
        body: dict[str, Any] = {
            "topic": last.topic,
            "epoch": last.epoch,
            "earliest_seq": last.earliest_seq,
            "head_seq": last.head_seq,
            "next_seq": last.head_seq + 1,
            "evict_floor": self._reads.evict_floor(call.name),
            "first": _place_of(first, last),
            "last": _place_of(last, last),
            "performance": self._performance(call),
        }
        call.send(encode(body))


class _Place(msgspec.Struct):
    """A record, as bounds name it."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")


def _place_of(answer: ReadAnswer, newest: ReadAnswer) -> _Place | None:
    """Return the record of a read, unless it was removed meanwhile."""
    record = next(iter(answer.rendered()), None)
    if record is None or answer.epoch != newest.epoch or record.seq < newest.earliest_seq:
        return None
    return _Place(record.seq, record.ts)


def seq_of(item: str) -> int | Refusal:
    """Return the seq in a path."""
    is_number = item.isascii() and item.isdecimal() and len(item) <= _DIGITS_MAX
    if is_number and 1 <= int(item) <= NUMBER_MAX:
        return int(item)
    return invalid("seq", f"must be an integer of at least 1, got {quoted(item)}")


def _is_whole(query: str) -> bool | Refusal:
    form = query_text(query, "as")
    if form in _FORMS:
        return _FORMS[form]
    return invalid("as", f"must be data or record, got {quoted(form or '')}")


def send_record(call: Call, seq: int, record: RenderedRecord | None) -> None:
    """Answer with the data of a record, or that there is none with this seq."""
    if record is None:
        call.refuse(Refusal(NOT_FOUND, f'topic "{call.name}" has no record with seq {seq}'))
    elif record.is_bytes:
        call.send_parts([record.content], len(record.content), 200, _OCTETS_FIELD)
    else:
        call.send(record.content)
