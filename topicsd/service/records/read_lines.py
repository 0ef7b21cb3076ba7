"""A read's response as lines of JSON: a record a line, and the position in header fields.

JSON has line ends only between its tokens, where they mean nothing, so those of a record become blanks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from shared.http.head import Fields
from topicsd.engine.requests import ReadAnswer
from topicsd.service.call import CONTENT_TYPE
from topicsd.service.input.line_records import LINES
from topicsd.service.render import encode
from topicsd.stream.chunks import Chunk

_decode: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_BLANKS: Final = bytes.maketrans(b"\r\n", b"  ")


def wants_lines(fields: Fields) -> bool:
    """Return whether the client accepts lines by name; `*/*` means JSON."""
    return LINES in fields.accept.lower()


def lines_of(records: Iterable[bytes | memoryview]) -> bytes:
    """Return records, which are separated by commas, as lines.

    >>> lines_of([b'{"$seq":1,"data":[', b'1,\\n2]},{"$seq":2,"data":2}'])
    b'{"$seq":1,"data":[1, 2]}\\n{"$seq":2,"data":2}\\n'
    """
    text = b"".join(records)
    if not text:
        return b""
    if b"\n" in text or b"\r" in text:
        text = text.translate(_BLANKS)
    return b"\n".join([*map(bytes, _decode(b"[%b]" % text)), b""])


def position_fields(result: ReadAnswer | Chunk, next_from_seq: int) -> bytes:
    """Return the header fields of a response with lines."""
    fields = b"%b%b\r\n" % (CONTENT_TYPE, LINES.encode())
    fields += b"topics-epoch: %d\r\ntopics-next-from-seq: %d\r\n" % (result.epoch, next_from_seq)
    fields += b"topics-head-seq: %d\r\ntopics-earliest-seq: %d\r\n" % (result.head_seq, result.earliest_seq)
    if result.tombstone is not None:
        fields += b"topics-tombstone: %b\r\n" % encode(result.tombstone)
    return fields
