"""A decoder of appends that stops at the first record too many, before millions of them are built.

It counts as it builds, which costs more than building, so it is asked only for a body that could be too many.

Must not know: what records are for.
"""

from __future__ import annotations

import msgspec

from topicsd.engine.requests import AppendRequest, NewRecord

# No record is shorter: {"data":1} and a comma.
_RECORD_BYTES_MIN = 11


class TooManyRecords(Exception):
    pass


class _Room:
    left = 0


class _Counted(NewRecord, gc=False):
    def __post_init__(self) -> None:
        _Room.left -= 1
        if _Room.left < 0:
            raise TooManyRecords


class _CountedAppend(AppendRequest, gc=False):
    records: list[_Counted]  # type: ignore[assignment]


_decoder = msgspec.json.Decoder(_CountedAppend)


def may_hold_more(body: bytes, records_max: int) -> bool:
    return len(body) > records_max * _RECORD_BYTES_MIN and body.count(b"{") > records_max


def decode_counted(body: bytes, records_max: int) -> AppendRequest:
    """Raises `TooManyRecords`, or what any decoder raises."""
    _Room.left = records_max
    return _decoder.decode(body)
