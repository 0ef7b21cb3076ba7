"""Bounds of JSON bodies that the decoder does not check: depth, UTF-8, NUL in a text.

Every body gets the cheap check; only a body that fails it gets the exact check. Each check takes time
proportional to the bytes, also for a hostile body, and memory proportional to a block of `BLOCK_BYTES`.
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

# A long body is examined in blocks of this size.
BLOCK_BYTES: Final = 64 << 10

BACKSLASH: Final = ord("\\")
"""A byte that is found fast. A body without it needs no search for escapes."""
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))


def is_utf8(body: bytes) -> bool:
    if body.isascii():
        return True
    # In blocks: the decoded text of a long body may be four times as large as its bytes.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(body), BLOCK_BYTES):
            decoder.decode(body[at : at + BLOCK_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def is_too_deep(text: bytes | msgspec.Raw, depth_max: int) -> bool:
    """Return whether JSON text nests brackets deeper than `depth_max` anywhere.

    >>> is_too_deep(b'[[1], "[["]', 2), is_too_deep(b'[[[1]], "]]"]', 2)
    (False, True)
    """
    if len(text) <= 2 * depth_max:
        return False  # Every opening bracket needs a closing one.
    if len(text) <= BLOCK_BYTES:
        body = bytes(text)
        if body.count(b"[") + body.count(b"{") <= depth_max:
            return False
    return are_too_deep([memoryview(text)], depth_max)


def are_too_deep(parts: Iterable[memoryview], depth_max: int) -> bool:
    """Check as `is_too_deep` does the parts of a text that remain without some of its values."""
    depth, in_text = 0, 0
    for part in parts:
        at = 0
        while at < len(part):
            block = bytes(part[at : at + BLOCK_BYTES])
            at += len(block)
            if b"\\" in block:
                if block.endswith(b"\\") and (len(block) - len(block.rstrip(b"\\"))) % 2:
                    block += part[at : at + 1]
                    at += 1
                # After this every quotation mark begins or ends a text.
                block = block.replace(b"\\\\", b"").replace(b'\\"', b"")
            # Two adjacent quotation marks do not affect the text around them.
            texts = block.translate(_BRACKETS, _NO_BRACKETS).replace(b'""', b"").split(b'"')
            brackets = b"".join(texts[in_text::2])
            in_text ^= (len(texts) - 1) & 1
            opens = brackets.count(b"[")
            if depth + opens > depth_max and _deepest(brackets, depth) > depth_max:
                return True
            depth += 2 * opens - len(brackets)
    return False


def may_hold_nul(body: bytes) -> bool:
    """Return whether a text in the body may decode to one with a NUL; a raw NUL is invalid JSON."""
    return BACKSLASH in body and b"\\u0000" in body


def _deepest(brackets: bytes, depth: int) -> int:
    """Return the greatest depth, from the sum and the peak of eight brackets at a time."""
    missing = -len(brackets) % 8
    # Closing brackets, also as padding, increase no depth.
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
