"""A boundary between two batches of the log, with all that it takes to read on from there.

Must not know: who remembers it.
"""

from __future__ import annotations

import msgspec


class LogPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    file: int
    """The WAL file, by its first ordinal."""
    offset: int
    ordinal: int
    """Of the next frame."""
    chain: int
    """Of the batch in front of it."""
