"""A place in a topic that is not a seq: by time, or so many records from the end."""

from __future__ import annotations

import msgspec


class Seek(msgspec.Struct, array_like=True, frozen=True):
    """One of the two."""

    from_ts: int | None = None
    """In front of the first record that is not older."""
    last: int | None = None
    """In front of the newest so many."""


def seek_of(from_ts: int | None, last: int | None) -> Seek | None:
    return None if from_ts is None and last is None else Seek(from_ts, last)
