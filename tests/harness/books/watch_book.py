"""The records written to watched topics, and what each watcher must have received of them.

Promises: each topic has one writer, so every seq is known in the end. A watcher is judged as it reads:
records arrive in order, once for each time that its cursor passes them, as they were written, and none of its
own node. A record that is skipped silently was requested to be deleted by then, or is of the watcher's own
node; any other skipped record has a tombstone, and only topics with a cap have tombstones.

A record names the incarnation of its topic (`n`), from which a watcher learns it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec


class Written(NamedTuple):
    value: int
    node: str
    tag: str


class TopicProgress(msgspec.Struct):
    """The part of one topic that a watcher has received."""

    seq: int
    incarnation: int | None = None
    """None until a record shows it."""
    above: int = -1
    """The incarnation is later than this one."""
    is_deleted: bool = False
    passed: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Ranges skipped silently in an incarnation that is not known yet."""

    def copy(self) -> TopicProgress:
        return msgspec.structs.replace(self, passed=list(self.passed))


class _Unsure(NamedTuple):
    """A record skipped silently before its properties were known."""

    topic: str
    incarnation: int
    seq: int
    nodes: frozenset[str]


class WatchBook:
    def __init__(self, caps: dict[str, int]) -> None:
        """Take the topics, each with its cap or 0."""
        self.caps = caps
        self.counts: Counter[str] = Counter()
        """Events counted for the test's output."""
        self.complaints: list[str] = []
        self._lock = threading.Lock()
        self._incarnations = dict.fromkeys(caps, 0)
        self._written: dict[tuple[str, int], dict[int, Written]] = {(topic, 0): {} for topic in caps}
        self._deleted: dict[tuple[str, int], set[int]] = {(topic, 0): set() for topic in caps}
        self._seen: dict[tuple[str, int, int], tuple[int, str]] = {}
        self._unsure: set[_Unsure] = set()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def complain(self, what: str) -> None:
        with self._lock:
            self.complaints.append(what)

    # -- reports of a topic's writer -----------------------------------------------------------------------

    def incarnation(self, topic: str) -> int:
        return self._incarnations[topic]

    def note_written(self, topic: str, first_seq: int, records: Iterable[Written]) -> None:
        with self._lock:
            known = self._written[topic, self._incarnations[topic]]
            for seq, record in enumerate(records, first_seq):
                assert seq not in known, f"{topic}: seq {seq} is assigned twice"
                known[seq] = record

    def note_delete(self, topic: str, before_seq: int | None, tag: str | None) -> None:
        """Note a delete before it is sent; every existing record is known."""
        key = (topic, self._incarnations[topic])
        with self._lock:
            self._deleted[key] |= {
                seq
                for seq, record in self._written[key].items()
                if (before_seq is None or seq < before_seq) and (tag is None or record.tag == tag)
            }

    def note_recreated(self, topic: str) -> None:
        """Note that the topic is deleted, and about to be created again."""
        with self._lock:
            number = self._incarnations[topic] = self._incarnations[topic] + 1
            self._written[topic, number] = {}
            self._deleted[topic, number] = set()

    # -- reports of a watcher ------------------------------------------------------------------------------

    def note_record(
        self, progress: TopicProgress, topic: str, record: dict[str, Any], nodes: frozenset[str]
    ) -> None:
        seq, data, node = record["$seq"], record["data"], record.get("$node", "")
        self._learn(progress, topic, data["n"], nodes)
        assert seq > progress.seq, f"{topic}: seq {seq} arrived after seq {progress.seq}"
        assert node not in nodes, f"{topic}: seq {seq} is from its own node"
        self.note_skipped(progress, topic, seq - 1, nodes)
        with self._lock:
            before = self._seen.setdefault((topic, data["n"], seq), (data["v"], node))
        assert before == (data["v"], node), f"{topic}: seq {seq} was {before} for another watcher"
        progress.seq = seq

    def _learn(self, progress: TopicProgress, topic: str, incarnation: int, nodes: frozenset[str]) -> None:
        if progress.incarnation is None:
            assert incarnation > progress.above, (
                f"{topic}: incarnation {incarnation} is not above {progress.above}"
            )
            progress.incarnation = incarnation
            passed, progress.passed = progress.passed, []
            for first, last in passed:
                self._pass(topic, incarnation, first, last, nodes)
        assert incarnation == progress.incarnation, f"{topic}: was recreated without a notice"

    def note_skipped(self, progress: TopicProgress, topic: str, seq: int, nodes: frozenset[str]) -> None:
        """Note that every record up to `seq` that was not received was skipped silently."""
        if seq <= progress.seq:
            return
        if progress.incarnation is None:
            progress.passed.append((progress.seq + 1, seq))
        else:
            self._pass(topic, progress.incarnation, progress.seq + 1, seq, nodes)
        progress.seq = seq

    def _pass(self, topic: str, incarnation: int, first: int, last: int, nodes: frozenset[str]) -> None:
        key = (topic, incarnation)
        with self._lock:
            written, deleted = self._written[key], self._deleted[key]
            for seq in range(first, last + 1):
                if seq not in deleted:
                    record = written.get(seq)
                    if record is None:
                        self._unsure.add(_Unsure(topic, incarnation, seq, nodes))
                    else:
                        assert record.node in nodes, f"{topic}: seq {seq} is missing without a tombstone"

    def note_tombstone(
        self, progress: TopicProgress, topic: str, tombstone: dict[str, Any], nodes: frozenset[str]
    ) -> None:
        if tombstone["reason"] == "recreated":
            progress.above = progress.above if progress.incarnation is None else progress.incarnation
            progress.incarnation = None
            progress.passed.clear()
            progress.seq = tombstone["earliest_seq"] - 1
            return
        assert tombstone["gap_from"] > progress.seq, (
            f"{topic}: repeated tombstone {tombstone} after {progress}"
        )
        most = tombstone["head_seq"] - self.caps[topic]
        assert self.caps[topic], f"{topic}: has no cap, but sent {tombstone}"
        assert tombstone["gap_to"] <= most, f"{topic}: lost more than its cap: {tombstone}"
        self.note_skipped(progress, topic, tombstone["gap_from"] - 1, nodes)
        progress.seq = tombstone["gap_to"]

    # -- end of the test -----------------------------------------------------------------------------------

    def is_complete(self, progress: TopicProgress, topic: str, nodes: frozenset[str]) -> bool:
        """Return whether a watcher has received everything, when all writers have stopped."""
        with self._lock:
            now = self._incarnations[topic]
            written, deleted = self._written[topic, now], self._deleted[topic, now]
            if progress.is_deleted or progress.incarnation not in (None, now):
                return False
            return all(
                seq <= progress.seq or seq in deleted or record.node in nodes
                for seq, record in written.items()
            )

    def check(self) -> None:
        """Check open complaints and undecided cases, and what watchers saw against what was written."""
        assert not self.complaints, "\n".join(self.complaints[:5])
        for (topic, incarnation, seq), (value, node) in self._seen.items():
            record = self._written[topic, incarnation].get(seq)
            assert record is not None, f"{topic}: seq {seq} was seen, but never written"
            assert (record.value, record.node) == (value, node), f"{topic}: seq {seq} is not what was written"
        for topic, incarnation, seq, nodes in self._unsure:
            record = self._written[topic, incarnation].get(seq)
            assert record is not None, f"{topic}: seq {seq} does not exist, but was skipped"
            assert record.node in nodes, f"{topic}: seq {seq} is missing without a tombstone"
