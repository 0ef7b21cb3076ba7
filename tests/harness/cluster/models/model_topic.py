"""The state of one topic on a model node, as the log of that node rebuilds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tests.harness.cluster.answers import Reply
from topicsd.catalog.catalog import Extent, Ownership, TopicRow


class Segment(NamedTuple):
    """Consecutive seqs that are exported, under a stem."""

    first_seq: int
    last_seq: int
    stem: str

    @classmethod
    def of(cls, extent: Extent) -> Segment:
        return cls(extent.first_seq, extent.last_seq, extent.objects[0].key.removesuffix(".data"))


class DeferredRequest(NamedTuple):
    """A request that waits until its topic is created."""

    retry: Callable[[], object]
    refuse: Reply


class State(msgspec.Struct):
    """What moves with a topic beside its extents."""

    deleted: list[int]
    lost: list[tuple[int, int]]
    keys: dict[str, tuple[int, int]]
    """By idempotency key: the first and the last seq."""


class ModelTopic:
    def __init__(self, name: str, incarnation: int, owner_epoch: int = 0, ceiling: int = 0) -> None:
        self.name = name
        self.incarnation = incarnation
        self.owner_epoch = owner_epoch
        self.ceiling = ceiling
        self.head = 0
        self.exported_to = 0
        self.records: dict[int, bytes] = {}
        """The records on the local disk."""
        self.deleted: set[int] = set()
        self.lost: list[tuple[int, int]] = []
        self.keys: dict[str, tuple[int, int]] = {}
        self.segments: list[Segment] = []
        self.seal_key = ""
        self.where = ""
        """The owner of a topic that has departed."""
        self.is_served = True

    def ownership(self, node: str) -> Ownership:
        return Ownership(node, self.incarnation, self.owner_epoch)

    @property
    def state(self) -> State:
        return State(sorted(self.deleted), list(self.lost), dict(self.keys))

    # -- the entries of the log ------------------------------------------------------------------------------

    def apply(self, kind: str, *args: Any) -> None:
        getattr(self, f"_{kind}")(*args)

    def _append(self, first_seq: int, payloads: list[bytes], key: str | None) -> None:
        self.head = first_seq + len(payloads) - 1
        self.records.update(enumerate(payloads, first_seq))
        if key is not None:
            self.keys[key] = (first_seq, self.head)

    def _delete(self, seqs: list[int]) -> None:
        self.deleted.update(seqs)

    def _grant(self, owner_epoch: int, ceiling: int) -> None:
        self.owner_epoch = owner_epoch
        self.ceiling = max(self.ceiling, ceiling)

    def _exported(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.exported_to = segment.last_seq

    def _dropped(self, segment: Segment) -> None:
        """The local copy of an exported segment is deleted."""
        for seq in range(segment.first_seq, segment.last_seq + 1):
            self.records.pop(seq, None)

    def _trimmed(self, segment: Segment) -> None:
        self.segments.remove(segment)

    def _sealing(self, key: str) -> None:
        self.seal_key = key

    def _departed(self, where: str) -> None:
        self.where = where
        self.is_served = False

    def _adopted(
        self,
        owner_epoch: int,
        resume_after: int,
        exported_to: int,
        ceiling: int,
        segments: list[Segment],
        state: State,
    ) -> None:
        self.owner_epoch, self.head, self.exported_to = owner_epoch, resume_after, exported_to
        self.ceiling = ceiling
        self.records = {}
        self.segments, self.deleted, self.keys = list(segments), set(state.deleted), dict(state.keys)
        self.lost = list(state.lost)
        self.seal_key, self.where, self.is_served = "", "", True


def is_granted(row: TopicRow, node: str) -> bool:
    """Return whether the catalog has granted a name to a node, which has exported nothing since."""
    return (row.owner, row.owner_epoch, row.state, row.exported_to) == (node, 1, "owned", 0)
