"""What a JSON body may not be that a decoder lets through: nested too deep, not UTF-8, NUL in a text.

The cheap question is asked of every body, the exact one only of a body that fails it. Each takes time in
proportion to the bytes, also of a body that is made to be slow, and memory in proportion to a piece of them.
"""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable
from itertools import accumulate
from operator import add
from typing import Final

import msgspec

DATA_DEPTH_MAX: Final = 128

# A long body is looked at in pieces of this size.
PIECE_BYTES: Final = 64 << 10

BACKSLASH: Final = ord("\\")
"""A byte is found at once, and a body that has none needs no look for what is written with one."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))


def is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    # In pieces: the text of a long body may be four times as large as its bytes.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(body), PIECE_BYTES):
            decoder.decode(body[at : at + PIECE_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def is_too_deep(text: bytes | msgspec.Raw, depth_max: int) -> bool:
    """Whether brackets are nested deeper than that anywhere in the text, if it is JSON.

    >>> is_too_deep(b'[[1], "[["]', 2), is_too_deep(b'[[[1]], "]]"]', 2)
    (False, True)
    """
    if len(text) <= 2 * depth_max:
        return False  # Every bracket that opens closes again.
    if len(text) <= PIECE_BYTES:
        body = bytes(text)
        if body.count(b"[") + body.count(b"{") <= depth_max:
            return False
    return are_too_deep([memoryview(text)], depth_max)


def are_too_deep(parts: Iterable[memoryview], depth_max: int) -> bool:
    """The same of what is left of a text when values were cut out of it."""
    depth, in_text = 0, 0
    for part in parts:
        at = 0
        while at < len(part):
            piece = bytes(part[at : at + PIECE_BYTES])
            at += len(piece)
            if b"\\" in piece:
                if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                    piece += part[at : at + 1]
                    at += 1
                # Behind this every quotation mark begins or ends a text.
                piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
            # Two marks that meet change nothing for what is around them.
            texts = piece.translate(_BRACKETS, _NO_BRACKETS).replace(b'""', b"").split(b'"')
            brackets = b"".join(texts[in_text::2])
            in_text ^= (len(texts) - 1) & 1
            opens = brackets.count(b"[")
            if depth + opens > depth_max and _deepest(brackets, depth) > depth_max:
                return True
            depth += 2 * opens - len(brackets)
    return False


def may_hold_nul(body: bytes) -> bool:
    """Whether a text in it may be decoded to one with a NUL; a raw one is no JSON."""
    return BACKSLASH in body and b"\\u0000" in body


def _deepest(brackets: bytes, depth: int) -> int:
    """Eight brackets at a time, as the bits of a byte: where they lead, and how deep it is on the way."""
    missing = -len(brackets) % 8
    # What closes makes nothing deeper.
    bits = brackets.translate(_BITS) + b"0" * missing
    if not bits:
        return depth
    packed = int(bits, 2).to_bytes(len(bits) // 8, "big")
    steps, peaks = array("b", packed.translate(_STEPS)), array("b", packed.translate(_PEAKS))
    deepest: int = max(map(add, accumulate(steps, initial=depth), peaks))
    return max(depth, deepest)


def _step_and_peak(byte: int) -> tuple[int, int]:
    depths = list(accumulate(1 if bit == "1" else -1 for bit in f"{byte:08b}"))
    return depths[-1], max(depths)


_BITS = bytes.maketrans(b"[]", b"10")
_STEPS = bytes(_step_and_peak(byte)[0] & 0xFF for byte in range(256))
_PEAKS = bytes(_step_and_peak(byte)[1] & 0xFF for byte in range(256))
