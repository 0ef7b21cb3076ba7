"""The stamp in the meta of a copy: the source, epoch and seq of the original, and the number of hops.

It is the last key of the meta, added byte for byte after the writer's part; each further route replaces the
stamp by its own. Writes with a key of that name are refused, so a stamp is always the server's. Copies of an
exactly-once route have a stamp, and so do copies of a route in a cycle; and a record with a stamp keeps one
on every further route. So each hop of a path counts.

    >>> meta = stamped_meta(b'{"k":1.0}', Stamp("a", 77, 9, 1))
    >>> meta.decode()
    '{"k":1.0,"_topics_router":{"source":"a","epoch":77,"seq":9,"hops":1}}'
    >>> read_stamp(meta)
    (Stamp(source='a', epoch=77, seq=9, hops=1), b'{"k":1.0}')
    >>> read_stamp(stamped_meta(b"", Stamp("b", 5, 3, 2)))
    (Stamp(source='b', epoch=5, seq=3, hops=2), b'')
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

STAMP_KEY: Final = "_topics_router"
STAMP_TEXT: Final = b'"_topics_router"'
"""A meta without this text has no stamp; a meta with it may have one."""
HOPS_MAX: Final = 16

_STAMP: Final = re.compile(rb',?"_topics_router":(\{"source":"[^"]+","epoch":\d+,"seq":\d+,"hops":\d+\})\}')


class Stamp(NamedTuple):
    """The original of a copy, and the number of hops from it."""

    source: str
    epoch: int
    seq: int
    hops: int


class _StampText(msgspec.Struct):
    source: str
    epoch: int
    seq: int
    hops: int


_decode = msgspec.json.Decoder(_StampText).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def stamped_meta(meta: bytes, stamp: Stamp) -> bytes:
    """Return `meta`, which has no stamp, with the stamp added."""
    source, epoch, seq, hops = stamp
    added = b'"_topics_router":{"source":"%b","epoch":%d,"seq":%d,"hops":%d}}' % (
        source.encode(),
        epoch,
        seq,
        hops,
    )
    before = meta.strip()[1:-1].strip()
    return b"{%b,%b" % (before, added) if before else b"{" + added


def read_stamp(meta: bytes) -> tuple[Stamp | None, bytes]:
    """Return the stamp, or None, and the meta without it."""
    at = meta.rfind(STAMP_TEXT)
    if at < 0:
        return None, meta
    at -= meta[at - 1 : at] == b","
    match = _STAMP.fullmatch(meta, at)
    if match is not None:
        before = meta[:at]
        return _stamp(match[1]), b"" if before == b"{" else before + b"}"
    # The text may occur in the writer's part, and a dead letter has other keys after its stamp.
    fields = _decode_fields(meta)
    own = fields.pop(STAMP_KEY, None)
    if own is None:
        return None, meta
    return _stamp(bytes(own)), _encode(fields) if fields else b""


def _stamp(text: bytes) -> Stamp | None:
    try:
        fields = _decode(text)
    except msgspec.DecodeError:
        return None  # From before the key was reserved.
    return Stamp(fields.source, fields.epoch, fields.seq, fields.hops)
