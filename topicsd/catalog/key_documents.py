"""The keys and documents of a catalog in a key-value store; the layout is that of Danube.

    names/topics/{ns}/{topic}                                 the topic may exist; for `list`
    storage/topics/{ns}/{topic}/state                         StateDocument: decides everything
    storage/topics/{ns}/{topic}/segments/{start:020d}         ExtentDocument
    storage/topics/{ns}/{topic}/segments/cur                  the start of the last extent, for people
    storage/topics/{ns}/{topic}/forgotten/{incarnation:020d}  NoteDocument: must not be created again

The documents are JSON. Each write has another nonce, so no two documents are equal (R5).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from topicsd.catalog.catalog import Extent, TopicRow

NAMESPACE: Final = "default"
NAMES: Final = f"names/topics/{NAMESPACE}/"


def new_nonce() -> str:
    return secrets.token_hex(8)


class PendingChange(msgspec.Struct, frozen=True):
    """A change of extents that is decided and not yet written to the documents of the extents."""

    add: tuple[Extent, ...]
    remove: tuple[Extent, ...]


class StateDocument(msgspec.Struct, frozen=True):
    """The row of a topic, and the change of its extents that is under way."""

    row: TopicRow
    birth: str
    """Random for each topic: documents of an earlier topic of the same name have another one."""
    change: int = 0
    """The number of changes of extents so far."""
    pending: PendingChange | None = None
    is_forgotten: bool = False
    nonce: str = msgspec.field(default_factory=new_nonce)


class ExtentDocument(msgspec.Struct, frozen=True):
    extent: Extent
    birth: str
    change: int
    """The number of the change that added it."""
    nonce: str = msgspec.field(default_factory=new_nonce)


class NoteDocument(msgspec.Struct, frozen=True):
    """A document that no decision depends on."""

    text: str
    nonce: str = msgspec.field(default_factory=new_nonce)


def name_key(name: str) -> str:
    return NAMES + name


def state_key(name: str) -> str:
    return f"storage/topics/{NAMESPACE}/{name}/state"


def extent_key(name: str, first_seq: int) -> str:
    """Return the key of an extent.

    >>> extent_key("orders", 42)
    'storage/topics/default/orders/segments/00000000000000000042'
    """
    return f"storage/topics/{NAMESPACE}/{name}/segments/{first_seq:020d}"


def last_extent_key(name: str) -> str:
    return f"storage/topics/{NAMESPACE}/{name}/segments/cur"


def forgotten_key(name: str, incarnation: int) -> str:
    return f"storage/topics/{NAMESPACE}/{name}/forgotten/{incarnation:020d}"


def live_extents(state: StateDocument, documents: Iterable[ExtentDocument]) -> Sequence[Extent] | None:
    """Return the extents of a topic in order, or None when the documents do not belong together.

    Every document was part of the topic once, and a late writer may have put one back. An extent that
    replaces others begins where the first of them began, or before. So in order of their starts the live
    extents come first, and a document that begins inside the one before it is void, as is one before
    `exported_from`. When documents were read in the middle of a change, a gap shows it.
    """
    extents = {one.extent.first_seq: one.extent for one in documents if one.birth == state.birth}
    if state.pending is not None:
        extents.update({extent.first_seq: extent for extent in state.pending.add})
    live: list[Extent] = []
    end = state.row.exported_from - 1
    for first in sorted(extents):
        if first == end + 1:
            live.append(extents[first])
            end = extents[first].last_seq
        elif first > end:
            break
    return live if end >= state.row.exported_to else None
