"""What a JSON body may not be that a decoder lets through: nested too deep, not UTF-8, NUL in a text.

The cheap question is asked of every body, the exact one only of a body that fails it. Each takes time in
proportion to the bytes and memory in proportion to a piece of them, whatever they are.

Must not know: what the body is for.
"""

from __future__ import annotations

import codecs
from typing import Final

CONTROL_DEPTH_MAX: Final = 64
DATA_DEPTH_MAX: Final = 128

# A long body is looked at in pieces of this size.
PIECE_BYTES: Final = 64 << 10
# At most so many times what nests nothing is taken out before the levels are counted one by one.
_FOLDS: Final = 4

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


def is_too_deep(body: bytes, depth_max: int) -> bool:
    """Whether brackets are nested deeper than that anywhere in the text.

    >>> is_too_deep(b'[[1], "[["]', 2), is_too_deep(b'[[[1]], "]]"]', 2)
    (False, True)
    """
    if body.count(b"[") + body.count(b"{") <= depth_max:
        return False
    depth, in_text, at = 0, 0, 0
    while at < len(body):
        piece = body[at : at + PIECE_BYTES]
        at += len(piece)
        if b"\\" in piece:
            if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                piece += body[at : at + 1]
                at += 1
            # Behind this every quotation mark begins or ends a text.
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Two marks that meet change nothing for what is around them.
        texts = piece.translate(_BRACKETS, _NO_BRACKETS).replace(b'""', b"").split(b'"')
        brackets = b"".join(texts[in_text::2])
        in_text ^= (len(texts) - 1) & 1
        if _depth_bound(brackets, depth) > depth_max and _depth(brackets, depth) > depth_max:
            return True
        depth += brackets.count(b"[") - brackets.count(b"]")
    return False


def may_hold_nul(body: bytes) -> bool:
    """Whether a text in it may be decoded to one with a NUL; a raw one is no JSON."""
    return b"\\u0000" in body


def may_have_key(body: bytes, quoted_key: bytes) -> bool:
    """Whether an object in it may have that key, also one that is written with escapes."""
    return quoted_key in body or b"\\u00" in body


def _depth_bound(brackets: bytes, depth: int) -> int:
    """The depth is at most this: each fold takes the innermost level out of every nest."""
    for _ in range(_FOLDS):
        size = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        depth += 1
        if 4 * len(brackets) > 3 * size:
            break
    return depth + brackets.count(b"[")


def _depth(brackets: bytes, depth: int) -> int:
    """Level by level, from one valley to the next: between two of them it only rises and then only falls."""
    deepest = depth
    for rise in brackets.replace(b"][", b"] [").split(b" "):
        opens = rise.count(b"[")
        deepest = max(deepest, depth + opens)
        depth += 2 * opens - len(rise)
    return deepest
