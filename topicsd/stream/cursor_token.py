"""The id of an event: the cursor of its stream in all topics, which lets a client resume.

For up to 64 topics it is the map of their names to seqs, as JSON in base64url, so that a person can read it:

    >>> cursor_token(["a", "b"], [5210, 88130])
    b'eyJhIjo1MjEwLCJiIjo4ODEzMH0'
    >>> read_token("eyJhIjo1MjEwLCJiIjo4ODEzMH0", ["b", "a", "c"])
    {'a': (5210, None), 'b': (88130, None)}

For more topics, it is the seqs in the order of the session, as varints after a zero byte, with which no
JSON begins:

    >>> names = [f"t{number}" for number in range(65)]
    >>> token = cursor_token(names, list(range(65)))
    >>> token[:8], read_token(token.decode(), names)["t64"]
    (b'AAABAgME', (64, None))

A seq alone does not identify the incarnation of its topic. If a topic was created again after the session
was, the id includes each seq with its epoch, as varints after a byte of one.

    >>> token = cursor_token(["a"], [3], [77])
    >>> token, read_token(token.decode(), ["a"])
    (b'AQNN', {'a': (3, 77)})
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import msgspec

from shared.contract.topic_config import NUMBER_MAX

MAP_TOPICS_MAX: Final = 64
TOKEN_CHARACTERS_MAX: Final = 32 << 10

_SEQS: Final = b"\0"
_SEQS_AND_EPOCHS: Final = b"\1"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, int]).decode


def cursor_token(names: Sequence[str], seqs: Sequence[int], epochs: Sequence[int] | None = None) -> bytes:
    """Encode a cursor. Pass `epochs` when they differ from the epochs of the session definition."""
    if epochs is not None:
        data = _SEQS_AND_EPOCHS + encode_varints(chain.from_iterable(zip(seqs, epochs, strict=True)))
    elif len(names) <= MAP_TOPICS_MAX:
        data = _encode(dict(zip(names, seqs, strict=True)))
    else:
        data = _SEQS + encode_varints(seqs)
    return urlsafe_b64encode(data).rstrip(b"=")


def read_token(token: str, names: Sequence[str]) -> dict[str, tuple[int, int | None]] | None:
    """Return seq and epoch by topic name, or None when the token is not of these topics.

    The epoch is None when it is that of the session definition. A map may lack some topics, and may have
    others.
    """
    if not token.isascii() or len(token) > TOKEN_CHARACTERS_MAX:
        return None
    try:
        data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return None
    if data[:1] in (_SEQS, _SEQS_AND_EPOCHS):
        width = 1 if data[:1] == _SEQS else 2
        numbers = decode_varints(data[1:])
        if numbers is None or len(numbers) != len(names) * width:
            return None
        epochs: Sequence[int | None] = numbers[1::2] if width == 2 else [None] * len(names)
        return dict(zip(names, zip(numbers[::width], epochs, strict=True), strict=True))
    try:
        seqs = _decode(data)
    except msgspec.DecodeError:
        return None
    if not all(0 <= seq <= NUMBER_MAX for seq in seqs.values()):
        return None
    topics = frozenset(names)
    return {name: (seq, None) for name, seq in seqs.items() if name in topics} or None


def encode_varints(numbers: Iterable[int]) -> bytes:
    data = bytearray()
    for number in numbers:
        while number >= 0x80:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
    return bytes(data)


def decode_varints(data: bytes) -> list[int] | None:
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if number > NUMBER_MAX:
            return None
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift > 63:
            return None
    return None if shift else numbers
