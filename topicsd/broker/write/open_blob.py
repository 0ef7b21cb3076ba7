"""A blob that is being filled: the parts of many requests, a slice for each topic.

The numbers of the records of a slice follow each other over its parts, in the order in which they joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from shared.contract.errors import Refusal
from topicsd.broker.frames_v1 import FRAMES_V1, Texts, ToEncode, encode_frames, renumber
from topicsd.broker.lls1 import EncodedBlob, SliceBody, encode_blob
from topicsd.catalog.shared.shared_catalog import Part, Producer, Slice


class Group(NamedTuple):
    """The records of one request for one topic: appended whole or not at all."""

    topic: str
    records: Sequence[ToEncode] | Texts
    append_id: str | None = None
    """The id that an idempotency key of the client makes; None for a write without one."""
    producer: Producer | None = None
    incarnation: int | None = None
    """The only incarnation of the topic that takes the records; None for the present one."""
    digest: str = ""
    """Of the records, for a write with an idempotency key."""
    is_urgent: bool = False
    """Whether the topic has the low-latency class."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The seqs of a group that is committed, and the object that holds it.

    The seqs of an old repetition of a producer are not known any more, and 0.
    """

    first_seq: int
    last_seq: int
    key: str
    is_repeated: bool = False
    """The same append was committed before; `key` is then not its object."""


AppendReply = Callable[[Appended | Refusal], object]


class PendingPart:
    """The records of one group on their way to a commit."""

    __slots__ = ("body", "part", "reply", "texts")

    def __init__(self, part: Part, body: bytes, texts: Texts | None, reply: AppendReply) -> None:
        self.part = part
        self.body = body
        self.texts = texts
        """The records, if they are texts."""
        self.reply = reply


class OpenSlice:
    __slots__ = ("count", "incarnation", "parts", "topic", "ts")

    def __init__(self, topic: str, incarnation: int, ts: int) -> None:
        self.topic = topic
        self.incarnation = incarnation
        self.ts = ts
        """Of its records."""
        self.parts: list[PendingPart] = []
        self.count = 0

    def with_parts(self, parts: list[PendingPart]) -> OpenSlice:
        """Return a slice of some of these parts, whose records are numbered again."""
        other = OpenSlice(self.topic, self.incarnation, self.ts)
        for one in parts:
            body = renumber(one.body, other.count + 1)
            other.parts.append(PendingPart(one.part, body, one.texts, one.reply))
            other.count += one.part.count
        return other


SliceKey = tuple[str, int]
"""Topic and incarnation."""


class OpenBlob:
    """The slices of one blob, in the order in which their topics joined."""

    def __init__(self, token: str, opened_at: float, created_ms: int) -> None:
        self.token = token
        """Makes the append ids of groups without one."""
        self.opened_at = opened_at
        self.created_ms = created_ms
        self.slices: dict[SliceKey, OpenSlice] = {}
        self.byte_length = 0
        self.part_count = 0

    def add(self, group: Group, incarnation: int, reply: AppendReply) -> int:
        """Encode a group into its slice; return the number of bytes."""
        key = group.topic, incarnation
        one = self.slices.get(key)
        if one is None:
            one = self.slices[key] = OpenSlice(group.topic, incarnation, self.created_ms)
        body = encode_frames(group.records, incarnation, one.count + 1, self.created_ms)
        append_id = group.append_id or f"{self.token}-{self.part_count}"
        count = len(group.records)
        part = Part(append_id, count, len(body), group.producer, group.digest)
        texts = group.records if isinstance(group.records, Texts) else None
        one.parts.append(PendingPart(part, body, texts, reply))
        one.count += count
        self.part_count += 1
        self.byte_length += len(body)
        return len(body)

    def encode(self, slices: Sequence[OpenSlice]) -> tuple[EncodedBlob, list[Slice]]:
        """Return the object with these slices, and what to commit of it."""
        bodies = [SliceBody(one.topic, one.count, [part.body for part in one.parts]) for one in slices]
        blob = encode_blob(self.created_ms, FRAMES_V1, bodies)
        commits = [
            Slice(one.topic, one.incarnation, offset, tuple(pending.part for pending in one.parts))
            for one, offset in zip(slices, blob.offsets, strict=True)
        ]
        return blob, commits
