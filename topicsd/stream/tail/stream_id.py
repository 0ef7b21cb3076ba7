"""The id of an event of a topic stream: the positions in all of its topics, which lets a client resume.

The topics of such a stream change, so the id names them. For up to 64 topics it is the map of their names to
seq and epoch, as JSON in base64url, so that a person can read it:

    >>> stream_id({"a": (5210, 7), "b": (88130, 9)})
    b'eyJhIjpbNTIxMCw3XSwiYiI6Wzg4MTMwLDldfQ'
    >>> read_stream_id("eyJhIjpbNTIxMCw3XSwiYiI6Wzg4MTMwLDldfQ")
    {'a': (5210, 7), 'b': (88130, 9)}

For more topics it is a byte of two, the length of the deflated names, the names, then seqs and epochs as
varints. Ids of one stream differ in their numbers mostly, so the names are deflated once.

    >>> many = {f"t{number}": (number, 5) for number in range(1000)}
    >>> stream_id(many)[:4], len(stream_id(many)) < 7000, read_stream_id(stream_id(many).decode()) == many
    (b'AgAA', True, True)
    >>> read_stream_id("bm8"), read_stream_id("AgAABg")
    (None, None)
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec

from shared.contract.topic_config import NUMBER_MAX
from topicsd.stream.cursor_token import (
    MAP_TOPICS_MAX,
    TOKEN_CHARACTERS_MAX,
    decode_varints,
    encode_varints,
)

StreamPosition = tuple[int, int]
"""A seq and the epoch of its topic."""

_DEFLATED: Final = b"\2"
_LENGTH_BYTES: Final = 4
_NAMES_AT: Final = len(_DEFLATED) + _LENGTH_BYTES
_INFLATED_BYTES_MAX: Final = 4 << 20
_SEPARATOR: Final = "\n"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, StreamPosition]).decode


def stream_id(positions: Mapping[str, StreamPosition]) -> bytes:
    if len(positions) <= MAP_TOPICS_MAX:
        data = _encode(positions)
    else:
        data = _deflated(tuple(positions)) + encode_varints(chain.from_iterable(positions.values()))
    return urlsafe_b64encode(data).rstrip(b"=")


def read_stream_id(text: str) -> dict[str, StreamPosition] | None:
    """Return the positions, or None for a text that is no such id."""
    if not text.isascii() or len(text) > TOKEN_CHARACTERS_MAX:
        return None
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        positions = _inflated(data) if data.startswith(_DEFLATED) else _decode(data)
    except (ValueError, zlib.error, msgspec.DecodeError):
        return None
    if not all(0 <= number <= NUMBER_MAX for one in positions.values() for number in one):
        return None
    return positions


@lru_cache(maxsize=128)
def _deflated(names: tuple[str, ...]) -> bytes:
    deflated = zlib.compress(_SEPARATOR.join(names).encode(), level=1)
    return _DEFLATED + len(deflated).to_bytes(_LENGTH_BYTES) + deflated


def _inflated(data: bytes) -> dict[str, StreamPosition]:
    """Return the positions in an id of many topics, or raise an error that says that it is none."""
    end = _NAMES_AT + int.from_bytes(data[len(_DEFLATED) : _NAMES_AT])
    inflater = zlib.decompressobj()
    names = inflater.decompress(data[_NAMES_AT:end], _INFLATED_BYTES_MAX).decode().split(_SEPARATOR)
    numbers = decode_varints(data[end:])
    if not inflater.eof or numbers is None:
        raise ValueError("must be deflated names, and numbers")
    positions = zip(numbers[::2], numbers[1::2], strict=True)
    return dict(zip(names, positions, strict=True))
