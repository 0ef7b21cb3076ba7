"""The options of a read: which records, in which form, and how many at once."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.tag_filter import TagFilter

LIMIT_DEFAULT: Final = 256
NO_NODES: Final[frozenset[str]] = frozenset()


class ReaderOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The options of a read or a follower, checked and within their bounds.

    Followers of a topic with equal options share its chunks. The struct crosses the link as it is.
    """

    nodes: frozenset[str] = NO_NODES
    """The reader's own nodes, whose records it does not want."""
    limit: int = LIMIT_DEFAULT
    bytes_max: int = 1 << 20
    with_tags: bool = True
    with_meta: bool = True
    with_data: bool = True
    """Whether chunks keep the data of the records; a read of the engine always returns it."""
    is_strong: bool = False
    """Whether to return synced records only, where the class of the topic has a sync."""
    match: TagFilter | None = None
    """The filter of the records; None for all. Tombstones are returned in any case."""
