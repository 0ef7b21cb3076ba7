"""The id of an event: where its stream stands in all its topics, for a client to come back with.

Up to 64 topics it is the map of their names to seqs, as JSON in base64url, so that a person can read it:

    >>> map_token(["a", "b"], [5210, 88130])
    b'eyJhIjo1MjEwLCJiIjo4ODEzMH0'
    >>> read_token("eyJhIjo1MjEwLCJiIjo4ODEzMH0", ["b", "a", "c"])
    {'a': 5210, 'b': 88130}

Above, it is the seqs in the order of the definition, as varints behind a zero byte, which no JSON begins with:

    >>> names = [f"t{number}" for number in range(65)]
    >>> token = cursor_token(names, list(range(65)))
    >>> token[:8], read_token(token.decode(), names)["t64"]
    (b'AAABAgME', 64)

Must not know: sessions, what a topic is.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

import msgspec

MAP_TOPICS_MAX: Final = 64
TOKEN_CHARACTERS_MAX: Final = 32 << 10

_OPAQUE: Final = b"\0"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, int]).decode


def cursor_token(names: Sequence[str], seqs: Sequence[int]) -> bytes:
    if len(names) <= MAP_TOPICS_MAX:
        return map_token(names, seqs)
    data = bytearray(_OPAQUE)
    for seq in seqs:
        while seq >= 0x80:
            data.append(seq & 0x7F | 0x80)
            seq >>= 7
        data.append(seq)
    return urlsafe_b64encode(data).rstrip(b"=")


def map_token(names: Sequence[str], seqs: Sequence[int]) -> bytes:
    return urlsafe_b64encode(_encode(dict(zip(names, seqs, strict=True)))).rstrip(b"=")


def read_token(token: str, names: Sequence[str]) -> dict[str, int] | None:
    """By name, of the topics that it knows; None when it is no token of these topics."""
    if not token.isascii() or len(token) > TOKEN_CHARACTERS_MAX:
        return None
    try:
        data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return None
    if data[:1] == _OPAQUE:
        seqs = _read_varints(data[1:])
        return dict(zip(names, seqs, strict=True)) if seqs is not None and len(seqs) == len(names) else None
    try:
        found = _decode(data)
    except msgspec.DecodeError:
        return None
    known = set(names)
    if not all(seq >= 0 for seq in found.values()):
        return None
    return {name: seq for name, seq in found.items() if name in known}


def _read_varints(data: bytes) -> list[int] | None:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
        elif shift > 63:
            return None
    return None if shift else values
