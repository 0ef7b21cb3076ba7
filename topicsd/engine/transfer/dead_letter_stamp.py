"""A job delivered too often, as a record of the dead-letter topic.

Its meta names its origin, after what the writer put there. The writer's part stays byte for byte, and is
restored when the stamp is removed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

# A reason of 1 KiB can be six times as long in JSON, and names have up to 255 characters.
STAMP_BYTES_MAX: Final = 8 << 10

_encode = msgspec.json.Encoder().encode


def stamped_meta(meta: bytes, queue: str, seq: int, deliveries: int, reason: str) -> bytes:
    """Return `meta` with the origin of a dead letter added.

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
    return with_stamps(meta, stamps)


def with_stamps(meta: bytes, stamps: dict[str, object]) -> bytes:
    """Return `meta` with members added at its end."""
    added = _encode(stamps)
    before = meta.strip()[1:-1].strip()
    return b"{%b,%b" % (before, added[1:]) if before else added


class Origin(NamedTuple):
    """The queue that a dead letter was moved from, and its meta there."""

    queue: str
    meta: bytes
    """The meta before the stamp was added."""


class _Stamp(msgspec.Struct, forbid_unknown_fields=True):
    queue: str = msgspec.field(name="$dead_letter_from")
    deliveries: int = msgspec.field(name="$dead_letter_deliveries")
    seq: int = msgspec.field(name="$dead_letter_src_seq")
    reason: str = msgspec.field(name="$dead_letter_reason", default="")


_decode = msgspec.json.Decoder(_Stamp).decode
# A JSON string cannot contain these bytes, as its quotes are escaped.
_BEGIN: Final = b'"$dead_letter_from":'


def take_off_stamp(meta: bytes) -> Origin | None:
    """Return the origin in the last stamp and the meta without it, or None without a stamp.

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
