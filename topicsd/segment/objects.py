"""The objects of exported segments, read through a bounded cache of blocks.

The calls wait for the network. They are made on disk threads, never on the event loop: what the loop needs of
a segment (`.idx`, `.tags`, `.del`) stays in the data directory when `.data` leaves it.
"""

from __future__ import annotations

from typing import Final

from topicsd.segment.entry import OBJECT_SUFFIXES, STATE
from topicsd.segment.referred_stems import ReferredStems
from topicsd.store.block_cache import BlockCache
from topicsd.store.metered import MeteredStore

CACHE_BYTES: Final = 64 << 20


class SegmentObjects:
    """The objects of one store, for all threads of a process."""

    def __init__(self, store: MeteredStore, cache_bytes: int = CACHE_BYTES) -> None:
        self.store = store
        self.cache = BlockCache(store, cache_bytes)
        self.referred = ReferredStems(store)

    @property
    def is_remote(self) -> bool:
        """Whether reads are billed, and the vendor checks what is stored."""
        return not self.store.url.startswith("file:")

    def path_of(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.store.url}/{key}"

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end. A missing object raises FileNotFoundError."""
        return self.cache.read(key, offset, size)

    def exists(self, key: str) -> bool:
        try:
            self.store.info(key)
        except FileNotFoundError:
            return False
        return True

    def size(self, key: str) -> int:
        return self.store.info(key).size

    def delete(self, stem: str) -> None:
        """Delete the objects of one export; missing ones are no error."""
        # .data last: an interrupted delete leaves what a listing shows as a segment.
        for suffix in (STATE, *reversed(OBJECT_SUFFIXES)):
            self.store.delete(stem + suffix)
            self.cache.forget(stem + suffix)

    def close(self) -> None:
        self.store.close()
