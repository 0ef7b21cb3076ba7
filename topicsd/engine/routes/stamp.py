"""The stamp in the meta of a copy: which record of which topic it is, and by how many forwards it came here.

It is the last key of the meta, put there byte for byte behind what the writer has; each forward that the
record goes on along puts its own in the place of the one before. A writer's own key of that name is refused,
so what is found is ours. All copies of a rule that copies exactly once have a stamp, and those of one that
is part of a circle; and a record that has one keeps having one, whatever rule it goes on along. So on any way
around each hop counts.

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
"""What is nowhere in a meta without a stamp, and may be in one."""
HOPS_MAX: Final = 16

_STAMP: Final = re.compile(rb',?"_topics_router":(\{"source":"[^"]+","epoch":\d+,"seq":\d+,"hops":\d+\})\}')


class Stamp(NamedTuple):
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
    """`meta` has none."""
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
    """The stamp, and the meta without it."""
    at = meta.rfind(STAMP_TEXT)
    if at < 0:
        return None, meta
    at -= meta[at - 1 : at] == b","
    found = _STAMP.fullmatch(meta, at)
    if found is not None:
        before = meta[:at]
        return _stamp(found[1]), b"" if before == b"{" else before + b"}"
    # The text may be anywhere in what the writer has; and a dead letter has other keys behind its stamp.
    fields = _decode_fields(meta)
    own = fields.pop(STAMP_KEY, None)
    if own is None:
        return None, meta
    return _stamp(bytes(own)), _encode(fields) if fields else b""


def _stamp(text: bytes) -> Stamp | None:
    try:
        found = _decode(text)
    except msgspec.DecodeError:
        return None  # Of a time when the key was a writer's to use.
    return Stamp(found.source, found.epoch, found.seq, found.hops)
