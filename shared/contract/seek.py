"""A position in a topic by time or by number of records from the end, not by seq."""

from __future__ import annotations

import msgspec


class Seek(msgspec.Struct, array_like=True, frozen=True):
    """A position by time or from the end. Exactly one field is set."""

    from_ts: int | None = None
    """Time of the position: before the first record that is not older."""
    last: int | None = None
    """Number of newest records after the position."""


def seek_of(from_ts: int | None, last: int | None) -> Seek | None:
    return None if from_ts is None and last is None else Seek(from_ts, last)
