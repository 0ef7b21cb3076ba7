"""The id of a watch session: its home shard, a mark of the server, and an unguessable part.

::

    off  size  field
      0    2   shard     the home of the session
      2    6   mark      of the server: the low 48 bits of xxh3_64 over its instance
      8   16   session   random

24 bytes, big-endian, as 32 characters of base64url without padding, so each id has exactly one spelling. The
mark distinguishes the ids of this data directory from those of another server or of a recreated data
directory. An id with another mark was never valid here; an id with our mark once was, even if its session
or its shard ended.

    >>> ids = WatchIds(b"instance--------")
    >>> wid = ids.make(3, bytes(range(16)))
    >>> wid
    'AANdIdklr2UAAQIDBAUGBwgJCgsMDQ4P'
    >>> ids.parse(wid)
    WatchId(shard=3, session=b'\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07\\x08\\t\\n\\x0b\\x0c\\r\\x0e\\x0f')
    >>> ids.parse(wid[:-1]), ids.parse(wid + "A"), WatchIds(b"another---------").parse(wid)
    (None, None, None)
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

import xxhash

SESSION_BYTES: Final = 16
SHARDS_MAX: Final = 1 << 16
_SHARD_BYTES: Final = 2
_MARK_BYTES: Final = 6
_MARK_END: Final = 1 << (8 * _MARK_BYTES)
_TEXT = re.compile(r"[A-Za-z0-9_-]{32}")


class WatchId(NamedTuple):
    shard: int
    session: bytes


class WatchIds:
    """The codec of the watch ids of one server."""

    def __init__(self, instance: bytes) -> None:
        self._mark = (xxhash.xxh3_64_intdigest(instance) % _MARK_END).to_bytes(_MARK_BYTES)

    def make(self, shard: int, session: bytes) -> str:
        assert 0 <= shard < SHARDS_MAX
        assert len(session) == SESSION_BYTES
        return urlsafe_b64encode(shard.to_bytes(_SHARD_BYTES) + self._mark + session).decode()

    def parse(self, text: str) -> WatchId | None:
        """Return the parts of an id, or None when this server did not make it."""
        if _TEXT.fullmatch(text) is None:
            return None
        data = urlsafe_b64decode(text)
        session_at = _SHARD_BYTES + _MARK_BYTES
        if data[_SHARD_BYTES:session_at] != self._mark:
            return None
        return WatchId(int.from_bytes(data[:_SHARD_BYTES]), data[session_at:])
