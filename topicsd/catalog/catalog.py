"""The interface of a catalog, its types, and the errors that all catalogs raise.

A catalog holds one row for each topic and one entry for each of its extents. Each verb is one atomic change,
or one consistent read; `create_all` is one change for each topic. The calls block; call them on a thread.

    error                 meaning                                            is it worth a retry?
    Fenced                the row says that this node may not do it          no: stop using the topic
    ChangeRefused         the change would break an invariant                no: it is our own error
    CatalogUnavailable    timeout, connection, lock, full disk               yes, after a while
    CatalogRefused        credentials, permissions, a newer schema           no, until the settings change

After CatalogUnavailable the outcome of a change is unknown (R9), so each verb is safe to repeat: the second
call of the same change finds it done and returns what the first would have returned.

K1  A topic has at most one owner: the node, incarnation and owner epoch of its row. The owner epoch grows by
    one with each change of owner and never falls. Every change is fenced by all three.
K2  The ceiling is at least every seq that any owner has given out. It grows while the topic is owned. A seal
    sets it to the last seq, since the owner has stopped (K5).
K3  The extents of a topic are contiguous from `exported_from` to `exported_to` and do not overlap.
    `exported_to` never falls and never exceeds the ceiling.
K4  A sealed topic is exported whole: `exported_to` equals the ceiling, which is the last seq.
K5  A node that has sent a seal gives out no seq of the topic before that seal is answered: done, Fenced or
    refused. It repeats the seal, also after a restart, and does not resume on a lookup that finds the topic
    owned, since its first request may still arrive.
K6  A topic that was adopted and then forgotten is never created again: `create` of this incarnation is
    Fenced. The node that created it may not know that its first `create` was done. Only its own node forgets
    a topic of owner epoch 1, which knows that it is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

RowState = Literal["owned", "sealed"]

EXTENTS_AT_ONCE: Final = 256
"""The most extents that one change adds or removes, and the most that one read returns."""
ROWS_AT_ONCE: Final = 1000
SEQ_MAX: Final = (1 << 63) - 1


class Ownership(NamedTuple):
    """What a node shows with each change: the row must have exactly these."""

    node: str
    incarnation: int
    """The epoch of the topic: another topic of the same name has another one."""
    owner_epoch: int


class TopicRow(msgspec.Struct, frozen=True):
    """What all nodes know of one topic."""

    name: str
    topic_id: int
    incarnation: int
    owner: str
    owner_epoch: int
    ceiling: int
    exported_from: int
    """The first seq of the first extent; `exported_to + 1` when there is none."""
    exported_to: int
    state: RowState
    sealed_key: str | None
    """The object of the snapshot entry of the last seal. The node that adopts the topic reads it."""

    @property
    def ownership(self) -> Ownership:
        return Ownership(self.owner, self.incarnation, self.owner_epoch)

    @property
    def has_extents(self) -> bool:
        return self.exported_from <= self.exported_to


class ExtentObject(msgspec.Struct, frozen=True):
    """One object of an extent."""

    key: str
    size: int
    checksum: str


class Extent(msgspec.Struct, frozen=True):
    """A range of seqs of one topic in the store; immutable.

    An extent stands for every seq of its range, also for those whose records were deleted or lost. Without
    objects it stands for seqs none of which has a record.
    """

    first_seq: int
    last_seq: int
    objects: tuple[ExtentObject, ...]
    first_ms: int
    """The times of the first and the last record."""
    last_ms: int
    owner_epoch: int
    """The epoch of the owner that wrote it, which its keys carry."""
    generation: int = 0
    """The number of times its records were merged or compacted."""


class NewTopic(NamedTuple):
    """A topic to add, with owner epoch 1."""

    name: str
    topic_id: int
    incarnation: int
    ceiling: int


class Lookup(NamedTuple):
    """The answer to a node that starts with the files of a topic."""

    row: TopicRow | None
    is_owner: bool
    """The topic is owned, and by exactly the given ownership."""


class Fenced(Exception):
    """The row does not permit the change; `row` is the row as it is, or None when the topic is forgotten."""

    def __init__(self, name: str, row: TopicRow | None) -> None:
        super().__init__(_fence_sentence(name, row))
        self.row = row


class ChangeRefused(Exception):
    """The change would break K2, K3 or K4; the message says how."""


class CatalogUnavailable(OSError):
    """The catalog did not answer in time; whether a change happened is unknown."""


class CatalogRefused(OSError):
    """The catalog answered that the request may not be made; a retry gives the same answer."""


class CatalogExtraMissing(Exception):
    """The client library of a catalog is not installed; the message says how to install it."""


def _fence_sentence(name: str, row: TopicRow | None) -> str:
    if row is None:
        return f"topic {name}: not in the catalog"
    verb = "owned" if row.state == "owned" else "sealed"
    return f"topic {name}: {verb} by node {row.owner} with owner epoch {row.owner_epoch}"


class Catalog(Protocol):
    """The verbs. A name is a valid topic name; all threads of a process may share one catalog."""

    @property
    def url(self) -> str:
        """The URL without credentials, for messages."""
        ...

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        """Add a topic with owner epoch 1. Raise Fenced when the name has another row."""
        ...

    def create_all(self, new: Sequence[NewTopic], node: str) -> list[TopicRow | Fenced]:
        """Add each topic as `create` does; return its row, or the `Fenced` that `create` would raise.

        Each topic is a change of its own: after an error some of them may be added.
        """
        ...

    def own(self, name: str, ownership: Ownership) -> Lookup:
        """Look a topic up at a start, and say whether this node owns it."""
        ...

    def raise_ceiling(self, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
        """Raise the ceiling to at least `ceiling`."""
        ...

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        """Append extents, replace extents by others of the same range, or remove the first ones.

        The last ones may be replaced by others that end later.
        """
        ...

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        """Return extents in order, from the first whose last seq is at least `seq`."""
        ...

    def seal(self, name: str, ownership: Ownership, last_seq: int, key: str) -> TopicRow:
        """End the ownership at `last_seq`; `key` is the object of the snapshot entry, and used once."""
        ...

    def adopt(
        self, name: str, node: str, incarnation: int, owner_epoch: int, accept_loss: bool = False
    ) -> TopicRow:
        """Become the owner, with the epoch after `owner_epoch`; resume above the ceiling of the answer.

        The topic must be sealed, unless `accept_loss`: seqs in (exported_to, ceiling] are then lost.
        """
        ...

    def forget(self, name: str, ownership: Ownership) -> None:
        """Remove a topic and its extents; one that is not there is no error."""
        ...

    def list(self, prefix: str, after: str, limit: int) -> list[TopicRow]:
        """Return the topics whose names begin with `prefix` and sort after `after`, in order."""
        ...

    def close(self) -> None: ...
