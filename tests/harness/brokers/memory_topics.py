"""A catalog for shared topics in memory, with the indexes that a history of ten thousand commits needs.

Promises: each verb follows C1 to C9 of `topicsd/catalog/shared/shared_catalog.py` by the shortest code that
does, and asserts them after each change. An append id is remembered for REPEATED_MS and no longer, so that a
broker that repeats a commit too late is found. It is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from topicsd.catalog.shared.shared_catalog import (
    CONDEMNED_MS,
    EXTENTS_AT_ONCE,
    PARTS_AT_ONCE,
    REPEATED_MS,
    TOPICS_AT_ONCE,
    BrokerNode,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    ConfigChanged,
    HeadNotice,
    LogState,
    Part,
    PartResult,
    SharedExtent,
    SharedTopic,
    Slice,
    TopicExists,
    TrimReason,
)


class _Committed(NamedTuple):
    result: PartResult
    digest: str
    at_ms: int


class _Entry:
    """All that the catalog knows of one topic."""

    def __init__(self, topic: SharedTopic) -> None:
        self.topic = topic
        self.extents: list[SharedExtent] = []
        self.ids: dict[str, _Committed] = {}
        self.producers: dict[str, tuple[int, PartResult]] = {}
        self.claim: tuple[Claim, int] | None = None
        """The claim, and when it ends."""
        self.compaction: Compaction | None = None

    def change(self, **fields: object) -> SharedTopic:
        self.topic = msgspec.structs.replace(self.topic, **fields)
        return self.topic


class MemoryListener:
    def __init__(self, topics: MemoryTopics, on_notices: Callable[[Sequence[HeadNotice]], object]) -> None:
        self.on_notices = on_notices
        self.names: set[str] = set()
        self.changes = 0
        self._topics = topics

    def follow(self, names: Collection[str]) -> None:
        self.names = set(names)
        self.changes += 1

    def close(self) -> None:
        self._topics.listeners.remove(self)


class MemoryTopics:
    url = "memory://catalog"

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: dict[str, _Entry] = {}
        self._condemned: dict[str, int] = {}
        """Condemned blobs, and when that was."""
        self._nodes: dict[str, tuple[BrokerNode, int, int]] = {}
        """By name: the node, when it said so, and when it expires."""
        self.listeners: list[MemoryListener] = []

    def catalog_id(self) -> str:
        return "memory"

    # -- topics

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        entry = self._entries.get(name)
        if entry is None:
            topic = SharedTopic(name, incarnation, "OPEN", 0, 0, 0, 0, self._now_ms(), config, 1)
            self._entries[name] = entry = _Entry(topic)
        if entry.topic.incarnation != incarnation:
            raise TopicExists(name)
        return entry.topic

    def topics(self, names: Sequence[str]) -> list[SharedTopic | None]:
        assert len(names) <= TOPICS_AT_ONCE
        return [self._entries[name].topic if name in self._entries else None for name in names]

    def configure(self, name: str, incarnation: int, config: bytes, version: int) -> SharedTopic | None:
        entry = self._entry(name, incarnation)
        if entry is None:
            return None
        topic = entry.topic
        if (topic.config, topic.config_version) == (config, version + 1):
            return topic
        if topic.config_version != version:
            raise ConfigChanged(name)
        return entry.change(config=config, config_version=version + 1)

    def fence(self, name: str, incarnation: int, log_state: LogState) -> SharedTopic | None:
        entry = self._entry(name, incarnation)
        return None if entry is None else entry.change(log_state=log_state)

    def forget(self, name: str, incarnation: int) -> None:
        if self._entry(name, incarnation) is not None:
            del self._entries[name]

    def _entry(self, name: str, incarnation: int) -> _Entry | None:
        entry = self._entries.get(name)
        return entry if entry is not None and entry.topic.incarnation == incarnation else None

    # -- writes

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        assert sum(len(one.parts) for one in slices) <= PARTS_AT_ONCE
        return [self._commit_slice(key, encoding, one) for one in slices]

    def _commit_slice(self, key: str, encoding: str, one: Slice) -> list[PartResult]:
        results: list[PartResult] = []
        at = one.byte_offset
        for part in one.parts:
            results.append(self._commit_part(key, encoding, one, part, at))
            at += part.byte_length
        return results

    def _commit_part(self, key: str, encoding: str, one: Slice, part: Part, at: int) -> PartResult:
        entry = self._entry(one.topic, one.incarnation)
        if entry is None:
            return PartResult("missing")
        now_ms = self._now_ms()
        before = entry.ids.get(part.append_id)
        if before is not None and before.at_ms + REPEATED_MS > now_ms:
            if before.digest != part.digest:
                return PartResult("mismatch")
            return msgspec.structs.replace(before.result, status="repeated")
        topic = entry.topic
        if topic.log_state == "FENCED":
            return PartResult("fenced")
        if self._condemned.get(key, -CONDEMNED_MS) + CONDEMNED_MS > now_ms:
            return PartResult("condemned")
        first, last = topic.head + 1, topic.head + part.count
        result = PartResult("committed", first, last)
        if part.producer is not None:
            name, first_number, last_number = part.producer
            known, earlier = entry.producers.get(name, (0, result))
            if last_number == known:
                return msgspec.structs.replace(earlier, status="repeated")
            if last_number < known:
                return PartResult("repeated")
            if known and first_number != known + 1:
                return PartResult("sequence_gap", next_number=known + 1)
            entry.producers[name] = last_number, result
        entry.ids[part.append_id] = _Committed(result, part.digest, now_ms)
        entry.change(head=last)
        extent = SharedExtent(first, last, "WAL", key, encoding, at, part.byte_length, now_ms)
        previous = entry.extents[-1] if entry.extents else None
        if previous is not None and (previous.key, previous.byte_offset + previous.byte_length) == (key, at):
            entry.extents[-1] = msgspec.structs.replace(
                previous, last_seq=last, byte_length=previous.byte_length + part.byte_length
            )
        else:
            entry.extents.append(extent)
        self._check(entry)
        return result

    def _check(self, entry: _Entry) -> None:
        """Assert that the extents are contiguous from the first seq to the head (C4)."""
        topic, extents = entry.topic, entry.extents
        if not extents:
            assert topic.first_seq > topic.head
            return
        assert extents[0].first_seq <= topic.first_seq <= extents[0].last_seq
        assert extents[-1].last_seq == topic.head
        for before, after in pairwise(extents):
            assert before.last_seq + 1 == after.first_seq

    # -- reads

    def extents_from(self, name: str, seq: int, limit: int) -> list[SharedExtent]:
        assert limit <= EXTENTS_AT_ONCE
        entry = self._entries.get(name)
        return [] if entry is None else [one for one in entry.extents if one.last_seq >= seq][:limit]

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        assert len(topics) <= TOPICS_AT_ONCE
        entries = [self._entry(*topic) for topic in topics]
        return [-1 if entry is None else entry.topic.head for entry in entries]

    def listen(self, on_notices: Callable[[Sequence[HeadNotice]], object]) -> MemoryListener:
        listener = MemoryListener(self, on_notices)
        self.listeners.append(listener)
        return listener

    def report(self, *notices: HeadNotice) -> None:
        """Send notices to every listener; commits send none by themselves."""
        for listener in self.listeners:
            listener.on_notices(notices)

    # -- retention, compaction, vacuum

    def trim(self, name: str, incarnation: int, to_seq: int, reason: TrimReason) -> SharedTopic | None:
        entry = self._entry(name, incarnation)
        if entry is None:
            return None
        field = f"{reason}_to"
        to_seq = min(to_seq, entry.topic.head)
        topic = entry.change(**{field: max(getattr(entry.topic, field), to_seq)})
        entry.extents = [one for one in entry.extents if one.last_seq >= topic.first_seq]
        self._check(entry)
        return topic

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        now_ms = self._now_ms()
        if entry.claim is not None and entry.claim[1] > now_ms and entry.claim[0].compactor != compactor:
            return None
        claim = Claim(name, compactor, now_ms, lease_ms)
        entry.claim = claim, now_ms + lease_ms
        return claim

    def release(self, claim: Claim) -> None:
        entry = self._entries.get(claim.topic)
        if entry is not None and entry.claim is not None and entry.claim[0].compactor == claim.compactor:
            entry.claim = None

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        entry = self._entry(compaction.topic, compaction.incarnation)
        if entry is None:
            raise CompactionRefused("no such topic")
        extent = compaction.extent
        if extent in entry.extents:
            return
        valid = entry.claim
        if valid is None or valid[1] <= self._now_ms() or valid[0].compactor != claim.compactor:
            raise ClaimLost(claim.topic)
        entry.compaction = None
        replaced = self._replaced(entry, extent)
        if not replaced or extent.key in self._condemned:
            raise CompactionRefused("the extents have changed")
        at = entry.extents.index(replaced[0])
        entry.extents[at : at + len(replaced)] = [extent]
        entry.change(compacted_to=max(entry.topic.compacted_to, extent.last_seq))
        entry.compaction = compaction
        self._check(entry)

    def _replaced(self, entry: _Entry, extent: SharedExtent) -> list[SharedExtent]:
        """Return the extents that this one replaces; none if it does not fit (C7)."""
        inside = [
            one
            for one in entry.extents
            if one.first_seq >= extent.first_seq and one.last_seq <= extent.last_seq
        ]
        before_ms = self._now_ms() - REPEATED_MS
        compacted_to = entry.topic.compacted_to
        is_again = extent.last_seq <= compacted_to and len(inside) > 1
        is_next = next((one for one in entry.extents if one.first_seq > compacted_to), None) in inside[:1]
        if (
            not inside
            or (inside[0].first_seq, inside[-1].last_seq) != (extent.first_seq, extent.last_seq)
            or not (is_again or is_next)
            or any(one.created_ms > before_ms for one in inside)
        ):
            return []
        return inside

    def replace_extents(self, name: str, extent: SharedExtent) -> None:
        """Replace the extents of a range, as a compaction does, whatever their age."""
        entry = self._entries[name]
        inside = [
            one
            for one in entry.extents
            if one.first_seq >= extent.first_seq and one.last_seq <= extent.last_seq
        ]
        at = entry.extents.index(inside[0])
        entry.extents[at : at + len(inside)] = [extent]
        self._check(entry)

    def finish_compaction(self, name: str) -> Compaction | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        compaction, entry.compaction = entry.compaction, None
        return compaction

    def condemn(self, keys: Sequence[str]) -> set[str]:
        used = self.keys()
        condemned = {key for key in keys if key not in used}
        self._condemned.update(dict.fromkeys(condemned, self._now_ms()))
        return condemned

    def keys(self) -> set[str]:
        """Return the objects that an extent names."""
        return {extent.key for entry in self._entries.values() for extent in entry.extents}

    # -- membership

    def heartbeat(self, node: BrokerNode, expire_ms: int) -> None:
        now_ms = self._now_ms()
        self._nodes[node.name] = node, now_ms, now_ms + expire_ms

    def leave(self, name: str) -> None:
        self._nodes.pop(name, None)

    def nodes(self) -> list[BrokerNode]:
        now_ms = self._now_ms()
        return [
            msgspec.structs.replace(node, age_ms=now_ms - seen_ms)
            for _, (node, seen_ms, expires_ms) in sorted(self._nodes.items())
            if expires_ms > now_ms
        ]

    def list(self, prefix: str, after: str, limit: int) -> list[SharedTopic]:
        names = sorted(name for name in self._entries if name.startswith(prefix) and name > after)
        return [self._entries[name].topic for name in names[:limit]]

    def close(self) -> None:
        pass
