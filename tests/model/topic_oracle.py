"""A topic as its clients see it, in the simplest form: a dictionary of records and a few numbers.

It is slow and obviously right. It has no index, no batch and no file; every operation visits every record.
Where the engine may choose, as in how far an unclean stop moves a head, the model passes the choice
(`resume_at`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shared.contract.topic_config import TopicConfig

# The fields of a frame besides node, tag and payload.
FRAMING_BYTES = 4 + 34 + 8

Gap = tuple[int, int, str]


@dataclass(frozen=True)
class OracleRecord:
    ts: int
    data: bytes
    tag: str | None
    node: str | None
    is_bytes: bool = False

    @property
    def size(self) -> int:
        return (
            FRAMING_BYTES + len(self.data) + len((self.tag or "").encode()) + len((self.node or "").encode())
        )


@dataclass
class OracleAnswer:
    seqs: list[int]
    next_from_seq: int
    tombstone: Gap | None


@dataclass
class OracleKey:
    records: list[OracleRecord]
    first_seq: int
    used_ms: int


@dataclass
class OracleNumber:
    """The last write of a producer."""

    producer_seq: int
    first_seq: int
    count: int


@dataclass
class OracleTopic:
    config: TopicConfig
    last_ts: int
    """The time of its newest record, or of its creation."""
    head: int = 0
    floor: int = 1
    epoch: int | None = None
    records: dict[int, OracleRecord] = field(default_factory=dict)
    evicted_to: dict[str, int] = field(default_factory=dict)
    lost: list[Gap] = field(default_factory=list)
    keys: dict[str, OracleKey] = field(default_factory=dict)
    producers: dict[str, OracleNumber] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)

    @property
    def is_ephemeral(self) -> bool:
        return self.config.durability == "ephemeral"

    @property
    def earliest(self) -> int:
        return min(self.records, default=self.head + 1)

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.records.values())

    # Operations.

    def refusal(self, sizes: list[int], now_ms: int) -> str | None:
        """Return the code with which an append of records of these sizes is refused, or None."""
        config = self.config
        if config.discard != "reject" or not (config.cap_records or config.cap_bytes):
            return None
        self.expire(now_ms)
        for cap, new, used in (
            (config.cap_records, len(sizes), len(self.records)),
            (config.cap_bytes, sum(sizes), self.bytes),
        ):
            if cap and new > cap:
                return "record_too_large"
            if cap and used + new > cap:
                return "topic_full"
        return None

    def append(self, records: list[OracleRecord], now_ms: int) -> int:
        """Append the records; return their first seq."""
        if self.config.discard == "old" and (self.config.cap_records or self.config.cap_bytes):
            self.expire(now_ms)
        self.last_ts = max(now_ms, self.last_ts)
        first = self.head + 1
        for record in records:
            self.head += 1
            self.records[self.head] = replace(record, ts=self.last_ts)
        self.evict_over_caps()
        return first

    def evict_over_caps(self) -> None:
        config = self.config
        if config.discard == "reject":
            return
        while self._is_over(1):
            seq = min(self.records)
            if not (self._may_evict(seq) or self._is_over(2)):
                return
            self._evict(seq, "cap")

    def _is_over(self, times: int) -> bool:
        config = self.config
        return bool(
            (config.cap_records and len(self.records) > times * config.cap_records)
            or (config.cap_bytes and self.bytes > times * config.cap_bytes)
        )

    def _may_evict(self, seq: int) -> bool:
        return not self.config.protect_cursors or all(seq <= place for place in self.cursors.values())

    def expire(self, now_ms: int) -> None:
        """Evict records that are too old; they are at the front, as times never decrease."""
        if self.config.ttl_ms:
            for seq, one in list(self.records.items()):
                age_ms, ttl_ms = now_ms - one.ts, self.config.ttl_ms
                if age_ms > ttl_ms and (self._may_evict(seq) or age_ms > 2 * ttl_ms):
                    self._evict(seq, "ttl")

    def _evict(self, seq: int, reason: str) -> None:
        del self.records[seq]
        self.evicted_to[reason] = max(seq, self.evicted_to.get(reason, 0))
        self.floor = max(self.floor, seq + 1)
        self.lost = [gap for gap in self.lost if gap[1] >= self.floor]

    def delete(
        self, before_seq: int | None, tag: str | None, is_prefix: bool, after_seq: int | None = None
    ) -> int:
        """Delete the matching records; return how many there were."""
        deleted = [
            seq
            for seq, record in self.records.items()
            if (before_seq is None or seq < before_seq)
            and (after_seq is None or seq > after_seq)
            and (
                tag is None
                or record.tag == tag
                or (is_prefix and record.tag is not None and record.tag.startswith(tag))
            )
        ]
        for seq in deleted:
            del self.records[seq]
        return len(deleted)

    def resume_at(self, head: int, last_ts: int) -> None:
        """Apply a restart that may have moved the head: the seqs in between are lost and reported."""
        if self.is_ephemeral:
            self.last_ts = last_ts
            self.records.clear()
            self.keys.clear()
            self.producers.clear()
            self.cursors.clear()
            self.head = head
            if head:
                # The reasons of earlier evictions are lost with the records.
                self.evicted_to = {"crash": head}
                self.floor = head + 1
        elif head > self.head:
            self.lost.append((self.head + 1, head, "crash"))
            self.head = head

    # Reads.

    def read(self, from_seq: int, limit: int, nodes: frozenset[str], is_other_epoch: bool) -> OracleAnswer:
        cursor, tombstone = from_seq, None
        if from_seq > self.head or is_other_epoch:
            cursor, tombstone = self.floor - 1, (1, self.head, "recreated")
        elif from_seq + 1 < self.floor:
            cursor, tombstone = self.floor - 1, (from_seq + 1, self.floor - 1, self._reason(from_seq + 1))
        ahead = [gap for gap in self.lost if gap[1] > cursor]
        if ahead and ahead[0][0] <= cursor + 1 and tombstone is None:
            tombstone = (cursor + 1, ahead[0][1], ahead[0][2])
            cursor = ahead.pop(0)[1]
        stop = max(cursor, ahead[0][0] - 1) if ahead else self.head
        seqs: list[int] = []
        for seq in range(cursor + 1, stop + 1):
            if len(seqs) == limit:
                break
            cursor = seq
            record = self.records.get(seq)
            is_own = record is not None and self.config.dedupe_node and record.node in nodes
            if record is not None and not is_own:
                seqs.append(seq)
        return OracleAnswer(seqs, cursor, tombstone)

    def _reason(self, gap_from: int) -> str:
        reasons = [reason for reason, last in self.evicted_to.items() if last >= gap_from]
        return reasons[0] if len(reasons) == 1 else "mixed"
