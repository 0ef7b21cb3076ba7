"""The keys and documents of shared topics in a key-value store.

The log of a topic has the layout of the leaderless log, so its own tools can read it:

    llog/{topic}/partitions/{partition}/meta/control            Control: decides every commit
    llog/{topic}/partitions/{partition}/index/{end:020d}        IndexEntry: an extent, at its last seq
    llog/{topic}/partitions/{partition}/meta/compaction-cursor  CompactionCursor
    llog/{topic}/partitions/{partition}/meta/compaction         CompactionRecord
    llog/{topic}/partitions/{partition}/meta/compactor-claim    CompactorClaim, with a lease

The topic `orders` is partition 0 of orders, and `orders:3` is its partition 3. `data_key` is the full URI of
an object. `append_id` of a pending commit is the JSON of its parts. Fields that a document does not have are
absent, and not null, except `pending`.

Documents for which that layout has no place are beside it:

    topicsd/catalog                                  CatalogDocument: the id of the catalog
    topicsd/topics/{name}                            TopicDocument; for `list`, kept when a topic is forgotten
    topicsd/appends/{name}/{end:020d}                AppendDocument: the parts of an extent, for REPEATED_MS
    topicsd/producers/{name}/{producer}              ProducerDocument; the producer is quoted as in a URL
    topicsd/compacted/{name}/{end:020d}-{digest}     CompactedDocument: the length of a compacted object
    topicsd/blobs/{key}                              BlobDocument: which of commit and condemn was first
    topicsd/nodes/{name}                             NodeDocument, with a lease

All keys of a topic but its TopicDocument have the partition `{topic}:{partition}`.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import quote

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from topicsd.catalog.shared.part_changes import KnownPart, PartRun
from topicsd.catalog.shared.shared_catalog import (
    BrokerNode,
    Compaction,
    ExtentType,
    LogState,
    Producer,
    SharedExtent,
)

CATALOG: Final = "topicsd/catalog"
SECRET: Final = "topicsd/secret"
TOPICS: Final = "topicsd/topics/"
NODES: Final = "topicsd/nodes/"
LAST: Final = "\x7f"
"""Sorts after every character of a name."""
SEQ_END: Final = 10**20 - 1

CompactionState = Literal["WRITING_COMPACTED_INDEX", "DELETING_OLD", "UPDATING_CURSOR"]
BlobState = Literal["registered", "condemning", "condemned"]


# -- the documents of the leaderless log


class Pending(msgspec.Struct, frozen=True):
    """A commit that is done, and not yet written to the index."""

    append_id: str
    start_offset: int
    end_offset: int
    msg_count: int
    entry_type: ExtentType
    data_key: str
    encoding: str
    byte_offset: int
    byte_length: int
    created_at_ms: int


class Control(msgspec.Struct, frozen=True):
    log_state: LogState
    sequence_counter: int
    pending: Pending | None


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    type: ExtentType
    msg_count: int
    data_key: str
    encoding: str
    byte_offset: int | UnsetType = UNSET
    byte_length: int | UnsetType = UNSET
    created_at_ms: int


class CompactionCursor(msgspec.Struct, frozen=True):
    offset: int


class CompactionRecord(msgspec.Struct, frozen=True):
    compaction_id: str
    state: CompactionState
    start_offset: int
    end_offset: int
    msg_count: int
    data_key: str
    encoding: str
    created_at_ms: int


class CompactorClaim(msgspec.Struct, frozen=True):
    compactor_id: str
    claimed_at_ms: int


# -- the documents beside it


class CatalogDocument(msgspec.Struct, frozen=True):
    id: str


class SecretDocument(msgspec.Struct, frozen=True):
    secret: bytes
    """With it the nodes sign what they send to each other."""


class TopicDocument(msgspec.Struct, frozen=True):
    incarnation: int
    created_ms: int
    """Documents of the log that are older belong to an earlier topic of this name."""
    config: bytes
    config_version: int = 1
    deleted_to: int = 0
    evicted_to: int = 0
    is_forgotten: bool = False
    last_ms: int = 0
    """Of a forgotten topic: no document of its log is younger."""

    @property
    def first_seq(self) -> int:
        return max(self.deleted_to, self.evicted_to) + 1


class PartNote(msgspec.Struct, frozen=True, array_like=True):
    """What is to be remembered of a committed part."""

    append_id: str
    count: int
    digest: str
    producer: Producer | None


class AppendDocument(msgspec.Struct, frozen=True):
    incarnation: int
    start_offset: int
    committed_ms: int
    parts: list[PartNote]

    def known(self) -> list[tuple[str, KnownPart]]:
        """Return the parts by append id."""
        first, known = self.start_offset, []
        for part in self.parts:
            known.append((part.append_id, KnownPart(first, first + part.count - 1, part.digest)))
            first += part.count
        return known


class ProducerDocument(msgspec.Struct, frozen=True):
    incarnation: int
    first_number: int
    last_number: int
    first_seq: int
    last_seq: int
    used_ms: int

    def is_of(self, topic: TopicDocument) -> bool:
        """Return whether this is of the topic as it is now, and not of an earlier one of its name."""
        return self.incarnation == topic.incarnation and self.used_ms >= topic.created_ms


class CompactedDocument(msgspec.Struct, frozen=True):
    data_key: str
    byte_length: int


class BlobDocument(msgspec.Struct, frozen=True):
    state: BlobState
    topics: list[str]
    """Whose commits or compactions may refer to the blob."""
    changed_ms: int


class NodeDocument(msgspec.Struct, frozen=True):
    node: BrokerNode
    beat_ms: int


notes: Final = msgspec.json.Decoder(list[PartNote])


# -- keys


def partition_of(name: str) -> tuple[str, int]:
    """Return the topic and the partition that a name stands for.

    >>> partition_of("orders"), partition_of("orders:3"), partition_of("a:1:12")
    (('orders', 0), ('orders', 3), ('a:1', 12))
    >>> partition_of("orders:0"), partition_of("orders:03"), partition_of("orders:eu")
    (('orders:0', 0), ('orders:03', 0), ('orders:eu', 0))
    """
    topic, colon, number = name.rpartition(":")
    if colon and topic and number.isascii() and number.isdecimal() and number[0] != "0":
        return topic, int(number)
    return name, 0


class TopicKeys:
    """The keys of one topic.

    >>> keys = TopicKeys("orders:3")
    >>> keys.control, keys.partition
    ('llog/orders/partitions/3/meta/control', 'orders:3')
    >>> keys.index(42)
    'llog/orders/partitions/3/index/00000000000000000042'
    """

    def __init__(self, name: str) -> None:
        topic, number = partition_of(name)
        self.name = name
        self.partition = f"{topic}:{number}"
        self._log = f"llog/{topic}/partitions/{number}/"
        self.control = f"{self._log}meta/control"
        self.cursor = f"{self._log}meta/compaction-cursor"
        self.compaction = f"{self._log}meta/compaction"
        self.claim = f"{self._log}meta/compactor-claim"
        self.topic = TOPICS + name

    def index(self, end: int) -> str:
        return f"{self._log}index/{end:020d}"

    def append(self, end: int) -> str:
        return f"topicsd/appends/{self.name}/{end:020d}"

    def producer(self, producer: str) -> str:
        return f"topicsd/producers/{self.name}/{quote(producer, safe='')}"

    @property
    def producers(self) -> tuple[str, str]:
        """The range of the keys of producers."""
        return f"topicsd/producers/{self.name}/", f"topicsd/producers/{self.name}/{LAST}"

    def compacted(self, end: int, data_key: str) -> str:
        return f"{self.compacted_from(end)}{xxhash.xxh3_64_hexdigest(data_key.encode())}"

    def compacted_from(self, end: int) -> str:
        return f"topicsd/compacted/{self.name}/{end:020d}-"


def blob_key(data_key: str) -> str:
    return f"topicsd/blobs/{quote(data_key, safe='')}"


# -- from verbs to documents and back


def pending_of(run: PartRun, extent: SharedExtent, data_key: str) -> Pending:
    parts = [
        PartNote(part.append_id, part.count, part.digest, part.producer)
        for part in (one.part for one in run.parts)
    ]
    return Pending(
        msgspec.json.encode(parts).decode(),
        extent.first_seq,
        extent.last_seq,
        extent.last_seq - extent.first_seq + 1,
        "WAL",
        data_key,
        extent.encoding,
        extent.byte_offset,
        extent.byte_length,
        extent.created_ms,
    )


def index_entry(pending: Pending) -> IndexEntry:
    return IndexEntry(
        type=pending.entry_type,
        msg_count=pending.msg_count,
        data_key=pending.data_key,
        encoding=pending.encoding,
        byte_offset=pending.byte_offset,
        byte_length=pending.byte_length,
        created_at_ms=pending.created_at_ms,
    )


def compacted_entry(record: CompactionRecord) -> IndexEntry:
    return IndexEntry(
        type="COMPACTED",
        msg_count=record.msg_count,
        data_key=record.data_key,
        encoding=record.encoding,
        created_at_ms=record.created_at_ms,
    )


def record_of(compaction: Compaction, data_key: str, created_ms: int) -> CompactionRecord:
    new = compaction.extent
    return CompactionRecord(
        compaction.compaction_id,
        "WRITING_COMPACTED_INDEX",
        new.first_seq,
        new.last_seq,
        new.last_seq - new.first_seq + 1,
        data_key,
        new.encoding,
        created_ms,
    )
