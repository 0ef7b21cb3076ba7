"""A job that was delivered too often, as a record of the dead-letter topic.

Its meta says where it comes from, behind what the writer put there: that stays, byte for byte, and is found
again when the stamp is taken off.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

# A reason of 1 KiB may be six times as long in JSON, and names have up to 255 characters.
STAMP_BYTES_MAX: Final = 8 << 10

_encode = msgspec.json.Encoder().encode


def stamped_meta(meta: bytes, queue: str, seq: int, deliveries: int, reason: str) -> bytes:
    """
    >>> stamped_meta(b'{"k":1.0}', "q", 7, 3, "").decode()
    '{"k":1.0,"$dead_letter_from":"q","$dead_letter_deliveries":3,"$dead_letter_src_seq":7}'
    >>> stamped_meta(b"", "q", 7, 3, "no disk").decode()[-31:]
    '$dead_letter_reason":"no disk"}'
    """
    stamps: dict[str, object] = {
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": deliveries,
        "$dead_letter_src_seq": seq,
    }
    if reason:
        stamps["$dead_letter_reason"] = reason
    added = _encode(stamps)
    before = meta.strip()[1:-1].strip()
    return b"{%b,%b" % (before, added[1:]) if before else added


class Origin(NamedTuple):
    queue: str
    meta: bytes
    """As it was there."""


class _Stamp(msgspec.Struct, forbid_unknown_fields=True):
    queue: str = msgspec.field(name="$dead_letter_from")
    deliveries: int = msgspec.field(name="$dead_letter_deliveries")
    seq: int = msgspec.field(name="$dead_letter_src_seq")
    reason: str = msgspec.field(name="$dead_letter_reason", default="")


_decode = msgspec.json.Decoder(_Stamp).decode
# No text in JSON holds these bytes, as its quotes are escaped.
_BEGIN: Final = b'"$dead_letter_from":'


def take_off_stamp(meta: bytes) -> Origin | None:
    """The last stamp, of whoever put it there last; None when it ends with none.

    >>> take_off_stamp(stamped_meta(b'{"k":1.0}', "q", 7, 3, "no disk"))
    Origin(queue='q', meta=b'{"k":1.0}')
    >>> take_off_stamp(stamped_meta(b"", "q", 7, 3, ""))
    Origin(queue='q', meta=b'')
    >>> take_off_stamp(b'{"k":{"$dead_letter_from":"q"}}')
    """
    before, begin, rest = meta.rpartition(_BEGIN)
    try:
        stamp = _decode(b"{" + begin + rest) if begin else None
    except msgspec.DecodeError:
        stamp = None
    if stamp is None:
        return None
    kept = before.rstrip().removesuffix(b",")
    return Origin(stamp.queue, b"" if kept.strip() == b"{" else kept + b"}")
