"""What a catalog for shared topics must do, written as naively as possible: one entry for each seq.

Each verb returns what a catalog returns, or raises what it raises. Time is that of the clock it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from topicsd.catalog.shared.shared_catalog import (
    PRODUCER_KEPT_MS,
    PRODUCERS_MAX,
    REPEATED_MS,
    BrokerNode,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    ConfigChanged,
    LogState,
    Part,
    PartResult,
    SharedExtent,
    SharedTopic,
    Slice,
    TopicExists,
    TrimReason,
)


class Committed(NamedTuple):
    """A part that was committed."""

    part: Part
    first_seq: int
    last_seq: int
    committed_ms: int


class OracleTopic:
    def __init__(self, name: str, incarnation: int, created_ms: int, config: bytes) -> None:
        self.name = name
        self.incarnation = incarnation
        self.created_ms = created_ms
        self.config = config
        self.config_version = 1
        self.is_fenced = False
        self.head = self.deleted_to = self.evicted_to = self.compacted_to = 0
        self.extent_of: dict[int, SharedExtent] = {}
        """By seq: the extent that it is in."""
        self.committed: list[Committed] = []
        self.silent: dict[str, int] = {}
        """The producers in the table, with the time of their last part."""
        self.recorded: Compaction | None = None

    def row(self) -> SharedTopic:
        return SharedTopic(
            self.name,
            self.incarnation,
            "FENCED" if self.is_fenced else "OPEN",
            self.head,
            self.deleted_to,
            self.evicted_to,
            self.compacted_to,
            self.created_ms,
            self.config,
            self.config_version,
        )

    def extents(self) -> list[SharedExtent]:
        return list(dict.fromkeys(self.extent_of[seq] for seq in sorted(self.extent_of)))

    def last_of(self, producer: str) -> Committed | None:
        if producer not in self.silent:
            return None
        own = [one for one in self.committed if one.part.producer and one.part.producer.name == producer]
        return own[-1]


class SharedOracle:
    url = "oracle:"
    repeated_ms = REPEATED_MS

    def __init__(self, now_ms: Callable[[], int], producers_max: int = PRODUCERS_MAX) -> None:
        self.now_ms = now_ms
        self.producers_max = producers_max
        self.by_name: dict[str, OracleTopic] = {}
        self.claims: dict[str, Claim] = {}
        self.condemned: set[str] = set()
        self.members: dict[str, tuple[BrokerNode, int, int]] = {}

    # -- topics

    def topic(self, name: str, incarnation: int) -> OracleTopic | None:
        topic = self.by_name.get(name)
        return topic if topic is not None and topic.incarnation == incarnation else None

    def create(self, name: str, incarnation: int, config: bytes) -> SharedTopic:
        if name not in self.by_name:
            self.by_name[name] = OracleTopic(name, incarnation, self.now_ms(), config)
        if self.by_name[name].incarnation != incarnation:
            raise TopicExists(name)
        return self.by_name[name].row()

    def topics(self, names: Sequence[str]) -> list[SharedTopic | None]:
        return [self.by_name[name].row() if name in self.by_name else None for name in names]

    def configure(self, name: str, incarnation: int, config: bytes, version: int) -> SharedTopic | None:
        topic = self.topic(name, incarnation)
        if topic is None:
            return None
        is_done = topic.config_version == version + 1 and topic.config == config
        if topic.config_version != version and not is_done:
            raise ConfigChanged(name)
        topic.config, topic.config_version = config, version + 1
        return topic.row()

    def fence(self, name: str, incarnation: int, log_state: LogState) -> SharedTopic | None:
        topic = self.topic(name, incarnation)
        if topic is None:
            return None
        topic.is_fenced = log_state == "FENCED"
        return topic.row()

    def forget(self, name: str, incarnation: int) -> None:
        if self.topic(name, incarnation) is not None:
            del self.by_name[name]
            self.claims.pop(name, None)

    # -- writes

    def commit(self, key: str, encoding: str, slices: Sequence[Slice]) -> list[list[PartResult]]:
        return [self._commit_slice(key, encoding, one) for one in slices]

    def _commit_slice(self, key: str, encoding: str, one: Slice) -> list[PartResult]:
        topic = self.topic(one.topic, one.incarnation)
        results, offset = [], one.byte_offset
        ends_at = -1
        for part in one.parts:
            result = self._result(topic, part, key)
            if result.status == "committed":
                assert topic is not None
                start = offset
                if ends_at == offset:
                    start, first = (
                        topic.extent_of[topic.head].byte_offset,
                        topic.extent_of[topic.head].first_seq,
                    )
                else:
                    first = result.first_seq
                ends_at = offset + part.byte_length
                extent = SharedExtent(
                    first, result.last_seq, "WAL", key, encoding, start, ends_at - start, self.now_ms()
                )
                for seq in range(first, result.last_seq + 1):
                    topic.extent_of[seq] = extent
                topic.head = result.last_seq
                topic.committed.append(Committed(part, result.first_seq, result.last_seq, self.now_ms()))
                self._use_producer(topic, part)
            results.append(result)
            offset += part.byte_length
        return results

    def _use_producer(self, topic: OracleTopic, part: Part) -> None:
        if part.producer is None:
            return
        topic.silent[part.producer.name] = self.now_ms()
        while self.producers_max and len(topic.silent) > self.producers_max:
            oldest = min(topic.silent, key=lambda name: (topic.silent[name], name))
            assert self.now_ms() - topic.silent[oldest] > PRODUCER_KEPT_MS
            del topic.silent[oldest]

    def _result(self, topic: OracleTopic | None, part: Part, key: str) -> PartResult:
        if topic is None:
            return PartResult("missing")
        for one in topic.committed:
            is_same = one.part.append_id == part.append_id
            if is_same and self.now_ms() - one.committed_ms <= self.repeated_ms:
                if one.part.digest != part.digest:
                    return PartResult("mismatch")
                return PartResult("repeated", one.first_seq, one.last_seq)
        producer = part.producer
        last = topic.last_of(producer.name) if producer is not None else None
        number = last.part.producer.last_number if last is not None and last.part.producer else None
        if producer is not None and last is not None and number is not None:
            if last.part.producer == producer:
                return PartResult("repeated", last.first_seq, last.last_seq)
            if producer.last_number <= number:
                return PartResult("repeated")
        if topic.is_fenced:
            return PartResult("fenced")
        if producer is not None and number is not None and producer.first_number != number + 1:
            return PartResult("sequence_gap", next_number=number + 1)
        if producer is not None and number is None and not self._has_room(topic):
            return PartResult("producers_full")
        if key in self.condemned:
            return PartResult("condemned")
        return PartResult("committed", topic.head + 1, topic.head + part.count)

    def _has_room(self, topic: OracleTopic) -> bool:
        silent = [ms for ms in topic.silent.values() if self.now_ms() - ms > PRODUCER_KEPT_MS]
        return not self.producers_max or len(topic.silent) - len(silent) < self.producers_max

    # -- reads

    def extents_from(self, name: str, seq: int, limit: int) -> list[SharedExtent]:
        extents = self.by_name[name].extents() if name in self.by_name else []
        return [one for one in extents if one.last_seq >= seq][:limit]

    def heads(self, topics: Sequence[tuple[str, int]]) -> list[int]:
        present = [self.topic(*topic) for topic in topics]
        return [-1 if topic is None else topic.head for topic in present]

    # -- retention, compaction, vacuum

    def trim(self, name: str, incarnation: int, to_seq: int, reason: TrimReason) -> SharedTopic | None:
        topic = self.topic(name, incarnation)
        if topic is None:
            return None
        to_seq = min(to_seq, topic.head)
        if reason == "deleted":
            topic.deleted_to = max(topic.deleted_to, to_seq)
        else:
            topic.evicted_to = max(topic.evicted_to, to_seq)
        first = topic.row().first_seq
        topic.extent_of = {seq: one for seq, one in topic.extent_of.items() if one.last_seq >= first}
        return topic.row()

    def claim(self, name: str, compactor: str, lease_ms: int) -> Claim | None:
        present = self.claims.get(name)
        if name not in self.by_name or (present and present.compactor != compactor and self._lasts(present)):
            return None
        self.claims[name] = Claim(name, compactor, self.now_ms(), lease_ms)
        return self.claims[name]

    def _lasts(self, claim: Claim) -> bool:
        return self.now_ms() < claim.claimed_ms + claim.lease_ms

    def release(self, claim: Claim) -> None:
        if claim.topic in self.claims and self.claims[claim.topic].compactor == claim.compactor:
            del self.claims[claim.topic]

    def begin_compaction(self, claim: Claim, compaction: Compaction) -> None:
        present = self.claims.get(compaction.topic)
        if present is None or present.compactor != claim.compactor or not self._lasts(present):
            raise ClaimLost(compaction.topic)
        topic, new = self.topic(compaction.topic, compaction.incarnation), compaction.extent
        if topic is None:
            raise CompactionRefused(compaction.topic)
        is_there = new.last_seq in topic.extent_of and topic.extent_of[new.last_seq].key == new.key
        if is_there or (topic.recorded and topic.recorded.compaction_id == compaction.compaction_id):
            return
        is_again = new.first_seq <= topic.compacted_to
        after = new.first_seq - 1 if is_again else topic.compacted_to
        old = [one for one in topic.extents() if after < one.last_seq <= new.last_seq]
        if is_again and (new.last_seq > topic.compacted_to or len(old) < 2):
            raise CompactionRefused(compaction.topic)
        covered = [seq for seq, one in sorted(topic.extent_of.items()) if one in old]
        is_young = any(self.now_ms() - one.created_ms < self.repeated_ms for one in old)
        if covered != [*range(new.first_seq, new.last_seq + 1)] or is_young or new.key in self.condemned:
            raise CompactionRefused(compaction.topic)
        extent = SharedExtent(
            new.first_seq,
            new.last_seq,
            "COMPACTED",
            new.key,
            new.encoding,
            0,
            new.byte_length,
            new.created_ms,
        )
        topic.extent_of.update(dict.fromkeys(covered, extent))
        topic.compacted_to = max(topic.compacted_to, new.last_seq)
        topic.recorded = replace(compaction, extent=extent)

    def finish_compaction(self, name: str) -> Compaction | None:
        topic = self.by_name.get(name)
        recorded = topic.recorded if topic is not None else None
        if topic is not None:
            topic.recorded = None
        return recorded

    def condemn(self, keys: Sequence[str]) -> set[str]:
        used = {one.key for topic in self.by_name.values() for one in topic.extent_of.values()}
        condemned = set(keys) - used
        self.condemned |= condemned
        return condemned

    # -- membership

    def heartbeat(self, node: BrokerNode, expire_ms: int) -> None:
        self.members[node.name] = (node, self.now_ms(), expire_ms)

    def leave(self, name: str) -> None:
        self.members.pop(name, None)

    def nodes(self) -> list[BrokerNode]:
        return [
            BrokerNode(
                one.name, one.address, one.weight, one.roles, one.started_ms, one.report, self.now_ms() - beat
            )
            for _, (one, beat, expire_ms) in sorted(self.members.items())
            if self.now_ms() < beat + expire_ms
        ]

    def list(self, prefix: str, after: str, limit: int) -> list[SharedTopic]:
        names = [name for name in sorted(self.by_name) if name.startswith(prefix) and name > after]
        return [self.by_name[name].row() for name in names[:limit]]

    def close(self) -> None:
        pass
