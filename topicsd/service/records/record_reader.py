"""The read of one record: its data alone, as it was appended."""

from __future__ import annotations

from functools import partial
from typing import Generic

from shared.contract.errors import NOT_FOUND, Refusal, invalid
from shared.contract.reader_options import ReaderOptions
from shared.contract.topic_config import NUMBER_MAX
from shared.text.message import quoted
from topicsd.engine.requests import ReadAnswer, ReadRequest, RenderedRecord
from topicsd.service.call import CONTENT_TYPE, Call, reply_of
from topicsd.service.diff import M, TopicReads
from topicsd.service.input.record_upload import OCTETS

_OCTETS_FIELD = CONTENT_TYPE + OCTETS.encode() + b"\r\n"
_DIGITS_MAX = 16


class RecordReader(Generic[M]):
    def __init__(self, reads: TopicReads[M]) -> None:
        self._reads = reads

    def start(self, call: Call) -> None:
        seq = seq_of(call.item)
        if isinstance(seq, Refusal):
            call.refuse(seq)
            return
        request = ReadRequest(seq - 1, ReaderOptions(limit=1, with_tags=False, with_meta=False))
        answer = self._reads.try_read(call.name, request)
        if isinstance(answer, ReadAnswer):
            self._answer(call, seq, answer)
        elif isinstance(answer, Refusal):
            call.refuse(answer)
        else:
            self._reads.read(call.name, request, reply_of(call, partial(self._answer, call, seq)), answer)

    def _answer(self, call: Call, seq: int, answer: ReadAnswer) -> None:
        self._reads.note_read(call.name)
        record = next((one for one in answer.rendered() if one.seq == seq), None)
        send_record(call, seq, record)


def seq_of(item: str) -> int | Refusal:
    """Return the seq in a path."""
    is_number = item.isascii() and item.isdecimal() and len(item) <= _DIGITS_MAX
    if is_number and 1 <= int(item) <= NUMBER_MAX:
        return int(item)
    return invalid("seq", f"must be an integer of at least 1, got {quoted(item)}")


def send_record(call: Call, seq: int, record: RenderedRecord | None) -> None:
    """Answer with the data of a record, or that there is none with this seq."""
    if record is None:
        call.refuse(Refusal(NOT_FOUND, f'topic "{call.name}" has no record with seq {seq}'))
    elif record.is_bytes:
        call.send_parts([record.content], len(record.content), 200, _OCTETS_FIELD)
    else:
        call.send(record.content)
