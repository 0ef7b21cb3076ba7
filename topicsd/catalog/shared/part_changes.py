"""What becomes of the parts of a blob: pure decisions from what a catalog knows of a topic.

The first row that fits decides; C2, C5 and C6 are in this order.

    a part whose                                     is
    topic does not exist with this incarnation       missing
    append id is known, with the same digest         repeated
    append id is known, with another digest          mismatch
    producer has committed all its numbers           repeated
    topic is fenced                                  fenced
    producer has another next number                 sequence_gap
    producer is new, and there is no room for it     producers_full
    blob is condemned                                condemned
    else                                             committed

So a catalog need not know about the blob unless a part would be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from topicsd.catalog.shared.shared_catalog import (
    PRODUCER_KEPT_MS,
    Compaction,
    CompactionRefused,
    LogState,
    Part,
    PartResult,
    Producer,
    SharedExtent,
    Slice,
)


class KnownPart(NamedTuple):
    """A part that was committed within REPEATED_MS."""

    first_seq: int
    last_seq: int
    digest: str


class LastPart(NamedTuple):
    """The last part of a producer."""

    first_number: int
    last_number: int
    first_seq: int
    last_seq: int


class TopicFacts(NamedTuple):
    """What decides about the parts of one topic."""

    incarnation: int
    log_state: LogState
    head: int
    known: Mapping[str, KnownPart]
    """By append id; at least those of the parts."""
    producers: Mapping[str, LastPart]
    """By name; at least those of the parts."""
    has_room: Callable[[int], bool]
    """Whether this many new producers find room."""


class CommittedPart(NamedTuple):
    part: Part
    first_seq: int
    last_seq: int


class PartRun(NamedTuple):
    """Committed parts that follow each other in the blob: one extent."""

    byte_offset: int
    byte_length: int
    parts: list[CommittedPart]

    @property
    def first_seq(self) -> int:
        return self.parts[0].first_seq

    @property
    def last_seq(self) -> int:
        return self.parts[-1].last_seq

    def extent(self, key: str, encoding: str, created_ms: int) -> SharedExtent:
        first, last = self.first_seq, self.last_seq
        return SharedExtent(first, last, "WAL", key, encoding, self.byte_offset, self.byte_length, created_ms)

    @property
    def producers(self) -> dict[str, LastPart]:
        """The last part of each producer of this run."""
        return {
            one.part.producer.name: producer_write(one.part.producer, one.first_seq, one.last_seq)
            for one in self.parts
            if one.part.producer is not None
        }


class SliceChange(NamedTuple):
    results: list[PartResult]
    runs: list[PartRun]


def producer_write(producer: Producer, first_seq: int, last_seq: int) -> LastPart:
    return LastPart(producer.first_number, producer.last_number, first_seq, last_seq)


def decide_slice(one: Slice, state: TopicFacts | None, is_condemned: bool) -> SliceChange:
    """Decide the parts of a slice in their order; each decision counts for the next ones."""
    if state is None or state.incarnation != one.incarnation:
        return SliceChange([PartResult("missing")] * len(one.parts), [])
    known, producers = dict(state.known), dict(state.producers)
    results: list[PartResult] = []
    runs: list[PartRun] = []
    head, offset, new_producers = state.head, one.byte_offset, 0
    for part in one.parts:
        result = _repetition(part, known, producers) or _refusal(part, state, producers)
        is_new = part.producer is not None and part.producer.name not in producers
        if result is None and is_new and not state.has_room(new_producers + 1):
            result = PartResult("producers_full")
        if result is None and is_condemned:
            result = PartResult("condemned")
        if result is None:
            new_producers += is_new
            first, head = head + 1, head + part.count
            result = PartResult("committed", first, head)
            known[part.append_id] = KnownPart(first, head, part.digest)
            if part.producer is not None:
                producers[part.producer.name] = producer_write(part.producer, first, head)
            if runs and runs[-1].byte_offset + runs[-1].byte_length == offset:
                last = runs.pop()
            else:
                last = PartRun(offset, 0, [])
            last.parts.append(CommittedPart(part, first, head))
            runs.append(last._replace(byte_length=last.byte_length + part.byte_length))
        results.append(result)
        offset += part.byte_length
    return SliceChange(results, runs)


def _repetition(
    part: Part, known: Mapping[str, KnownPart], producers: Mapping[str, LastPart]
) -> PartResult | None:
    earlier = known.get(part.append_id)
    if earlier is not None and earlier.digest != part.digest:
        return PartResult("mismatch")
    if earlier is not None:
        return PartResult("repeated", earlier.first_seq, earlier.last_seq)
    last = producers.get(part.producer.name) if part.producer is not None else None
    if part.producer is None or last is None or part.producer.last_number > last.last_number:
        return None
    if part.producer[1:] == last[:2]:
        return PartResult("repeated", last.first_seq, last.last_seq)
    return PartResult("repeated")


def _refusal(part: Part, state: TopicFacts, producers: Mapping[str, LastPart]) -> PartResult | None:
    if state.log_state == "FENCED":
        return PartResult("fenced")
    last = producers.get(part.producer.name) if part.producer is not None else None
    if part.producer is not None and last is not None and part.producer.first_number != last.last_number + 1:
        return PartResult("sequence_gap", next_number=last.last_number + 1)
    return None


def is_silent(used_ms: int, now_ms: int) -> bool:
    """Return whether a producer may be replaced by a new one."""
    return now_ms - used_ms > PRODUCER_KEPT_MS


def replaced_after(compacted_to: int, first_seq: int) -> int:
    """Return the seq after which a compaction from `first_seq` on must replace all extents (C7)."""
    return min(compacted_to, first_seq - 1)


def is_replaceable(extents: Sequence[SharedExtent], first_seq: int, last_seq: int, compacted_to: int) -> bool:
    """Return whether a compaction of this range may replace `extents`, as far as their age allows it (C7).

    They are all extents after `replaced_after` that begin at `last_seq` or before.
    """
    if not extents or (extents[0].first_seq, extents[-1].last_seq) != (first_seq, last_seq):
        return False
    if first_seq > compacted_to:
        return all(one.type == "WAL" for one in extents)
    return last_seq <= compacted_to and len(extents) > 1


def check_compaction(
    compaction: Compaction,
    extents: Sequence[SharedExtent],
    compacted_to: int,
    now_ms: int,
    repeated_ms: int,
) -> None:
    """Raise CompactionRefused unless the range is one of `extents` that may be replaced (C7)."""
    new = compaction.extent
    if not is_replaceable(extents, new.first_seq, new.last_seq, compacted_to):
        raise CompactionRefused(
            f"topic {compaction.topic}: {new.first_seq} to {new.last_seq} are not the next extents, "
            "nor compacted ones"
        )
    if any(one.created_ms > now_ms - repeated_ms for one in extents):
        raise CompactionRefused(f"topic {compaction.topic}: an extent is too young")
