"""The start of an HTTP/2 connection with prior knowledge, and its rejection.

The client's preface looks like a request of a version other than HTTP/1.1, by design of HTTP/2. It counts
only at the very start of a connection: later bytes were sent through a peer that uses HTTP/1.1.

A frame of HTTP/2 (RFC 9113) begins with nine bytes, big endian:

::

    0        3      4       5           9
    +--------+------+-------+-----------+---------
    | length | type | flags | stream id | payload
    +--------+------+-------+-----------+---------

>>> go_away(5, 0).hex(" ")
'00 00 08 07 00 00 00 00 00 00 00 00 05 00 00 00 00'
"""

from __future__ import annotations

import struct
from typing import Final

# No HTTP/1.1 method begins with this.
PREFACE_START: Final = b"PRI "
PREFACE_LINE: Final = PREFACE_START + b"* HTTP/2.0\r\n"
PREFACE: Final = PREFACE_LINE + b"\r\nSM\r\n\r\n"

HEADER_BYTES: Final = 9
SETTINGS_TYPE: Final = 4
GO_AWAY_TYPE: Final = 7

_GO_AWAY = struct.Struct(">BHBBIII")


def is_http2(first: bytes) -> bool:
    """Return whether the first line of a connection is the HTTP/2 preface."""
    return first.startswith(PREFACE_LINE)


def go_away(last_stream_id: int, code: int) -> bytes:
    """Return a frame saying that streams after `last_stream_id` were ignored and may be retried."""
    return _GO_AWAY.pack(0, 8, GO_AWAY_TYPE, 0, 0, last_stream_id, code)


# The reply to a rejected preface. It says that nothing was processed, so a client may send all of it again.
REJECTION: Final = bytes([0, 0, 0, SETTINGS_TYPE, 0, 0, 0, 0, 0]) + go_away(0, 0)
