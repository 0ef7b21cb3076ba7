"""How a connection of HTTP/2 with prior knowledge begins, and how it is turned away by who does not speak it.

The client's preface looks like a request of a version that is not HTTP/1.1, on purpose. It counts at the very
start of a connection only: what comes later was sent through something that speaks HTTP/1.1.

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

# No method of HTTP/1.1 begins like this.
PREFACE_START: Final = b"PRI "
PREFACE_LINE: Final = PREFACE_START + b"* HTTP/2.0\r\n"
PREFACE: Final = PREFACE_LINE + b"\r\nSM\r\n\r\n"

HEADER_BYTES: Final = 9
SETTINGS_TYPE: Final = 4
GO_AWAY_TYPE: Final = 7

_GO_AWAY = struct.Struct(">BHBBIII")


def is_http2(first: bytes) -> bool:
    """Of the first bytes of a connection, as soon as its first line is there."""
    return first.startswith(PREFACE_LINE)


def go_away(last_stream_id: int, code: int) -> bytes:
    """The frame that says: no stream after that one is looked at, ask again elsewhere."""
    return _GO_AWAY.pack(0, 8, GO_AWAY_TYPE, 0, 0, last_stream_id, code)


# An answer to the preface, and that nothing was heard: a client may send all of it again.
TURNED_AWAY: Final = bytes([0, 0, 0, SETTINGS_TYPE, 0, 0, 0, 0, 0]) + go_away(0, 0)
