"""The interface of a catalog for shared topics: the order of their records, and where they are.

A shared topic has no owner. Any broker puts an object (a blob) with records of many topics into the store,
and one commit then gives those records their seqs. Each verb is one atomic change for each topic that it
names, or one consistent read. The calls block; call them on a thread.

    error                 meaning                                            is it worth a retry?
    CatalogUnavailable    timeout, connection, lock, full disk               yes, after a while
    CatalogRefused        credentials, permissions, a newer schema           no, until the settings change

After CatalogUnavailable the outcome of a change is unknown (R9), so each verb is safe to repeat: the second
call of the same change finds it done and returns what the first would have returned.

C1  The seqs of a topic begin at 1 and are given out in the order of commits, without a gap. `head` is the
    last one. It never falls, and no two commits get the same seq.
C2  A part is committed whole, once, and at contiguous seqs. Its append id decides: for REPEATED_MS after its
    commit, a part with the same id is a repetition and gets the same seqs. The numbers of a producer decide
    for as long as the topic exists.
C3  No part undoes another one: each has its own result. Parts of one slice are committed in their order.
C4  The extents of a topic are contiguous from `first_seq` to `head` and do not overlap. Readers see a record
    only when its extent is in the catalog (R1).
C5  A fenced topic commits nothing. Repetitions of what was committed before get their seqs (R1).
C6  A blob that was condemned is never committed: `commit` refuses its parts with `condemned`, and the broker
    puts the records into another blob. A blob is condemned only while no extent refers to it (P5). The mark
    is kept for CONDEMNED_MS, longer than any request is on its way.
C7  A compaction replaces the extents of a range by one extent of the same range, and changes nothing else:
    the extent keeps the `created_ms` that the compactor gives it, so that its records do not get younger.
    The range begins with the first extent after `compacted_to` and has no extent younger than REPEATED_MS,
    so a catalog may forget append ids (C2) together with the extents that they were committed in. Or it is a
    range of at least two extents up to `compacted_to`, which are merged again.
C8  `trim` removes records from the front. `deleted_to` counts what a client removed, which readers pass over
    in silence; `evicted_to` what the retention rules removed, which readers get reported. Extents wholly
    below the first seq are removed; the objects are removed by vacuum (R3). A trim to a seq after the head is
    one to the head, as it was at some moment while the trim ran.
C9  Leases and ages are measured by the clock of the catalog, never by those of the nodes.
C10 Notices are hints: any of them may be lost, late, doubled or out of order. What a notice says was
    committed before it was sent. Without an incarnation it may be of an earlier topic of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

REPEATED_MS: Final = 15 * 60_000
"""How long a repeated part is recognised, at least. Longer than any broker repeats a commit."""
CONDEMNED_MS: Final = 24 * 3_600_000
PRODUCERS_MAX: Final = 4096
"""The producers of a topic, unless a catalog is opened with another number; 0 is no limit."""
PRODUCER_KEPT_MS: Final = 7 * 24 * 3_600_000
"""At the limit a new producer replaces one that was silent for longer, as in a local topic."""
PARTS_AT_ONCE: Final = 10_000
EXTENTS_AT_ONCE: Final = 256
TOPICS_AT_ONCE: Final = 1000

LogState = Literal["OPEN", "FENCED"]
ExtentType = Literal["WAL", "COMPACTED"]
TrimReason = Literal["deleted", "evicted"]
PartStatus = Literal[
    "committed", "repeated", "mismatch", "missing", "fenced", "condemned", "sequence_gap", "producers_full"
]
"""`mismatch`: the append id was committed with another digest; `missing`: no topic of this incarnation."""


class SharedTopic(msgspec.Struct, frozen=True):
    """What all nodes know of one shared topic."""

    name: str
    incarnation: int
    """Random for each creation: another topic of the same name has another one."""
    log_state: LogState
    head: int
    """The last seq that was given out; 0 in a new topic."""
    deleted_to: int
    evicted_to: int
    compacted_to: int
    created_ms: int
    config: bytes
    """The configuration as JSON, as its client set it."""
    config_version: int

    @property
    def first_seq(self) -> int:
        """The first seq that can be read; `head + 1` when there is none."""
        return max(self.deleted_to, self.evicted_to) + 1


class SharedExtent(msgspec.Struct, frozen=True):
    """A range of seqs of one topic, in a slice of one object; immutable."""

    first_seq: int
    last_seq: int
    type: ExtentType
    key: str
    """The object in the store. Any text: a key-value catalog stores it as `data_key`."""
    encoding: str
    byte_offset: int
    byte_length: int
    """The slice; the length of the object for a compacted extent."""
    created_ms: int
    """When it was committed, by the clock of the catalog; of a compacted extent, when its last record was."""


class Producer(NamedTuple):
    """The numbers that a producer gave its writes in a part, which detect repetitions by the client.

    The first part of a producer may begin with any number, each later one with the next. A part whose numbers
    all were committed is `repeated`, with its seqs if it is the last part of its producer, else without.
    Another part that does not begin with the next number is a `sequence_gap`.
    """

    name: str
    first_number: int
    last_number: int


class Part(msgspec.Struct, frozen=True):
    """The records of one request for one topic: committed whole or not at all."""

    append_id: str
    """Unique for each attempt of a client; equal in each repetition of a commit (C2). An idempotency key of a
    client makes the same id again."""
    count: int
    byte_length: int
    producer: Producer | None = None
    digest: str = ""
    """Of the records, for a part with an idempotency key: other records with this key are a `mismatch`."""


class Slice(msgspec.Struct, frozen=True):
    """The parts of one topic in one blob; they follow each other from `byte_offset`."""

    topic: str
    incarnation: int
    byte_offset: int
    parts: tuple[Part, ...]


class PartResult(msgspec.Struct, frozen=True):
    """What became of a part; seqs are 0 unless it is committed or repeated."""

    status: PartStatus
    first_seq: int = 0
    last_seq: int = 0
    next_number: int = 0
    """With `sequence_gap`: the number that the producer has to begin with."""


class Claim(msgspec.Struct, frozen=True):
    """The right to compact a topic, until the lease ends."""

    topic: str
    compactor: str
    claimed_ms: int
    lease_ms: int


class Compaction(msgspec.Struct, frozen=True):
    """A compaction whose object is in the store; any compactor may finish it."""

    compaction_id: str
    topic: str
    incarnation: int
    extent: SharedExtent
    """The extent that replaces those of its range."""


class BrokerNode(msgspec.Struct, frozen=True):
    """A node with brokers, as its heartbeats describe it."""

    name: str
    address: str
    """`http://host:port`, where other nodes and clients reach it."""
    weight: float
    roles: tuple[str, ...]
    started_ms: int
    report: bytes = b"{}"
    """Counters for `GET /v0/cluster`, as JSON."""
    age_ms: int = 0
    """Since its last heartbeat, by the clock of the catalog; 0 in a heartbeat."""


class HeadNotice(NamedTuple):
    """That a topic may have grown (C10)."""

    topic: str
    incarnation: int | None = None
    """None when the notice does not say it."""
    head: int | None = None
    """A committed head; None when the notice has none."""


class HeadListener(Protocol):
    """Reports commits of all processes until it is closed, on any thread. No method waits for the catalog."""

    def follow(self, names: Collection[str]) -> None:
        """Report the commits of these topics, and each new one of them once; perhaps also those of others."""
        ...

    def close(self) -> None: ...


class TopicExists(Exception):
    """The name is taken by another incarnation."""


class ConfigChanged(Exception):
    """The configuration has another version; read it and try again."""


class ClaimLost(Exception):
    """The claim has expired or belongs to another compactor."""


class CompactionRefused(Exception):
    """The compaction does not fit the extents: another one has replaced them, or they were trimmed."""


class SharedCatalog(Protocol):
    """The verbs. A name is a valid topic name; all threads of a process may share one catalog."""

    @property
    def url(self) -> str:
        """The URL without credentials, for messages."""
        ...

    def catalog_id(self) -> str:
        """Return the id of this catalog: random, made once, and kept by copies and restores."""
        ...

    # -- topics

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        """Add a topic; return the one that is there when it has this incarnation, else raise TopicExists."""
        ...

    def topics(self, names: Sequence[str]) -> list[SharedTopic | None]:
        """Return topics by name, at most TOPICS_AT_ONCE; None for those that do not exist."""
        ...

    def configure(self, name: str, incarnation: int, config: bytes, version: int) -> SharedTopic | None:
        """Replace the configuration that has this version; return None when the topic does not exist."""
        ...

    def fence(self, name: str, incarnation: int, log_state: LogState) -> SharedTopic | None:
        """Fence or open a topic; when the call returns FENCED, no later commit gives out a seq (C5)."""
        ...

    def forget(self, name: str, incarnation: int) -> None:
        """Remove a topic with its extents; one that is not there is no error."""
        ...

    # -- writes

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        """Commit the parts of a blob that is in the store; return a result for each part of each slice."""
        ...

    # -- reads

    def extents_from(self, name: str, seq: int, limit: int) -> list[SharedExtent]:
        """Return extents in order, from the first whose last seq is at least `seq`."""
        ...

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        """Return the heads of topics by name and incarnation. Cheap: the poll of tail readers.

        -1 is of those that do not exist, or that were created again.
        """
        ...

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> HeadListener:
        """Begin to report commits, without waiting for the catalog (C10)."""
        ...

    # -- retention, compaction, vacuum

    def trim(self, name: str, incarnation: int, to_seq: int, reason: TrimReason) -> SharedTopic | None:
        """Remove the records up to `to_seq`, at most up to the head; a lower one changes nothing."""
        ...

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        """Claim the compaction of a topic, or extend the own claim.

        Return None while another compactor has it, and when there is no topic.
        """
        ...

    def release(self, claim: Claim) -> None:
        """End a claim; one that is lost is no error."""
        ...

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        """Replace the extents of a range by the extent of an object that is in the store (C7).

        When the call returns, readers see the new extent, and the compaction is recorded: what is left of the
        old extents is for `finish_compaction`, of any process. A compaction that is recorded already is
        finished first. Raise ClaimLost or CompactionRefused.
        """
        ...

    def finish_compaction(self, name: str) -> Compaction | None:
        """Finish the recorded compaction of a topic, if there is one, and return it.

        This completes a `begin_compaction` that was interrupted, or undoes it when it may not be done.
        """
        ...

    def condemn(self, keys: Sequence[str]) -> set[str]:
        """Condemn the blobs among `keys` to which no extent refers, and return them (C6)."""
        ...

    # -- membership

    def heartbeat(self, node: BrokerNode, expire_ms: int) -> None:
        """Say that a node is alive, for `expire_ms`."""
        ...

    def leave(self, name: str) -> None:
        """Remove a node at once."""
        ...

    def nodes(self) -> list[BrokerNode]:
        """Return the nodes that are alive, by name."""
        ...

    def list(self, prefix: str, after: str, limit: int) -> list[SharedTopic]:
        """Return the topics whose names begin with `prefix` and sort after `after`, in order."""
        ...

    def close(self) -> None: ...
