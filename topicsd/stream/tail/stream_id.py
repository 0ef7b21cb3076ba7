"""The id of an event of a topic stream: the positions in all of its topics, which lets a client resume.

No session remembers the topics of such a stream, so the id names them. For up to 64 topics it is the map of
their names to seq and epoch, as JSON in base64url, so that a person can read it:

    >>> stream_id({"a": (5210, 7), "b": (88130, 9)})
    b'eyJhIjpbNTIxMCw3XSwiYiI6Wzg4MTMwLDldfQ'

For more topics it is a byte of two, the number of topics, their topic ids, then seqs and epochs as varints.

    >>> read_stream_id("eyJhIjpbNTIxMCw3XSwiYiI6Wzg4MTMwLDldfQ").of("b")
    (88130, 9)
    >>> many = {f"t{number}": (number, 5) for number in range(65)}
    >>> stream_id(many)[:4], read_stream_id(stream_id(many).decode()).of("t64")
    (b'AgBB', (64, 5))
    >>> read_stream_id("bm8"), read_stream_id("AgBB")
    (None, None)
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from shared.contract.names import topic_id
from shared.contract.topic_config import NUMBER_MAX
from topicsd.stream.cursor_token import (
    MAP_TOPICS_MAX,
    TOKEN_CHARACTERS_MAX,
    decode_varints,
    encode_varints,
)

StreamPosition = tuple[int, int]
"""A seq and the epoch of its topic."""


class ResumedPositions(NamedTuple):
    """The positions of a client that resumes."""

    by_topic_id: dict[int, StreamPosition]
    names: tuple[str, ...] = ()
    """The names of the topics; empty when the id has only their topic ids."""

    def of(self, name: str) -> StreamPosition | None:
        return self.by_topic_id.get(topic_id(name))


_BY_TOPIC_ID: Final = b"\2"
_COUNT_BYTES: Final = 2
_ID_BYTES: Final = 8
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, StreamPosition]).decode


def stream_id(positions: Mapping[str, StreamPosition]) -> bytes:
    if len(positions) <= MAP_TOPICS_MAX:
        data = _encode(positions)
    else:
        ids = b"".join(topic_id(name).to_bytes(_ID_BYTES) for name in positions)
        numbers = encode_varints(chain.from_iterable(positions.values()))
        data = _BY_TOPIC_ID + len(positions).to_bytes(_COUNT_BYTES) + ids + numbers
    return urlsafe_b64encode(data).rstrip(b"=")


def read_stream_id(text: str) -> ResumedPositions | None:
    """Return the positions, or None for a text that is no such id."""
    if not text.isascii() or len(text) > TOKEN_CHARACTERS_MAX:
        return None
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        if data.startswith(_BY_TOPIC_ID):
            return _read_columns(data[len(_BY_TOPIC_ID) :])
        positions = _decode(data)
    except (ValueError, msgspec.DecodeError):
        return None
    if not all(0 <= number <= NUMBER_MAX for one in positions.values() for number in one):
        return None
    return ResumedPositions({topic_id(name): one for name, one in positions.items()}, tuple(positions))


def _read_columns(data: bytes) -> ResumedPositions | None:
    count = int.from_bytes(data[:_COUNT_BYTES])
    end = _COUNT_BYTES + count * _ID_BYTES
    numbers = decode_varints(data[end:])
    if numbers is None or len(numbers) != 2 * count:
        return None
    ids = (int.from_bytes(data[at : at + _ID_BYTES]) for at in range(_COUNT_BYTES, end, _ID_BYTES))
    positions = zip(numbers[::2], numbers[1::2], strict=True)
    return ResumedPositions(dict(zip(ids, positions, strict=True)))
