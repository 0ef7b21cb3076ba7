"""The entries of the ledger: requests, deletions, findings of a recovery, pages of topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Durability = Literal["ephemeral", "memory", "disk", "fsync"]

# in_flight: no answer yet; errored: an answer that leaves the outcome open; unknown: either of them after the
# process is gone; refused: an answer that means nothing was written; gone: a recovery did not show it.
Fate = Literal["in_flight", "acked", "errored", "refused", "unknown", "gone"]


@dataclass(eq=False)
class Request:
    topic: str
    payloads: list[bytes]
    tags: list[str | None]
    durability: Durability
    key: str | None = None
    fate: Fate = "in_flight"
    # Known from the ack, or from the recovery that showed the request.
    first_seq: int | None = None
    # It survived a failure of the machine, so it is on the media whatever its class.
    on_media: bool = False

    def seqs(self) -> range:
        return (
            range(0) if self.first_seq is None else range(self.first_seq, self.first_seq + len(self.payloads))
        )

    def __repr__(self) -> str:
        first = f"{self.payloads[0]!r:.60}"
        return (
            f"<{self.durability} request of {len(self.payloads)} at {self.first_seq}, {self.fate}: {first}>"
        )


@dataclass(eq=False)
class Deletion:
    """A delete of the seqs that it matched when it was called."""

    topic: str
    seqs: frozenset[int]
    acked: bool = False
    on_media: bool = False
    # The class under which it was acknowledged, if the topic's class changed since.
    durability: Durability | None = None


@dataclass
class TopicContents:
    """What a topic shows. `evict_floor` is the last evicted seq plus one, 0 or 1 if there is none."""

    head_seq: int = 0
    evict_floor: int = 0
    earliest_seq: int = 1
    # (first, last, reason)
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    # (seq, payload, tag)
    records: list[tuple[int, bytes, str | None]] = field(default_factory=list)

    def lost_seqs(self) -> set[int]:
        return {seq for first, last, _ in self.lost for seq in range(first, last + 1)}


@dataclass(eq=False)
class TopicPage:
    name: str
    durability: Durability
    # Whether the topic has a cap or a TTL.
    evicts: bool
    requests: list[Request] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    # The payload that each seq was ever acknowledged or shown for.
    owners: dict[int, bytes] = field(default_factory=dict)
    # The result of the last check.
    last: TopicContents = field(default_factory=TopicContents)

    def own(self, seq: int, payload: bytes) -> None:
        owner = self.owners.setdefault(seq, payload)
        assert owner == payload, f"{self.name}: seq {seq} had {owner!r} and now has {payload!r}"
