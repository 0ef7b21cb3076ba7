"""A job that was delivered too often, as a record of the dead-letter topic.

Its meta says where it comes from; what the writer put there stays, byte for byte. The key under which it is
appended is the same whenever that is tried, so that it is there once.

Must not know: where the topic is, how it is asked.
"""

from __future__ import annotations

from typing import Final

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


def dead_letter_key(queue: str, epoch: int, seq: int) -> str:
    """No longer than a key may be, whatever the name is."""
    return f"$dead_letter:{epoch}:{seq}:{queue}"[:256]
