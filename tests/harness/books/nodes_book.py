"""The book of clients that write to shared topics through several nodes, each record with a value of its own.

Promises: an answer is an ack, a definite refusal, or leaves the outcome open, as does a connection that ends.
`judge` compares what was noted with the whole contents of the topics:

K1  One value for each seq, for every reader and at any time.
K2  What was acknowledged is at its seqs.
K3  An append that was acknowledged before another one was sent has lower seqs.
K4  Nothing is there twice.
K5  What was definitely refused is not there.
K6  The seqs have no gap.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Literal

Outcome = Literal["open", "acknowledged", "refused"]


class NodesAppend:
    """One append of a client, with all its tries."""

    __slots__ = ("acked_at", "first_seq", "outcome", "sent_at", "topic", "values")

    def __init__(self, topic: str, values: list[str]) -> None:
        self.topic = topic
        self.values = values
        self.sent_at = time.monotonic()
        self.outcome: Outcome = "open"
        self.first_seq = 0
        self.acked_at = 0.0


class NodesBook:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._appends: list[NodesAppend] = []
        self._seen: dict[str, dict[int, str]] = {}
        self._number = 0
        self.acked_count = 0
        self.refusals: Counter[str] = Counter()
        self.complaints: list[str] = []

    def send(self, topic: str, count: int) -> NodesAppend:
        with self._lock:
            values = [f"v{self._number + one}" for one in range(count)]
            self._number += count
            append = NodesAppend(topic, values)
            self._appends.append(append)
        return append

    def acknowledge(self, append: NodesAppend, first_seq: int) -> None:
        with self._lock:
            append.first_seq, append.acked_at = first_seq, time.monotonic()
            append.outcome = "acknowledged"
            self.acked_count += len(append.values)
            for seq, value in enumerate(append.values, first_seq):
                self._note(append.topic, seq, value)

    def refuse(self, append: NodesAppend, code: str, is_definite: bool) -> None:
        with self._lock:
            self.refusals[code] += 1
            if is_definite and append.outcome == "open":
                append.outcome = "refused"

    def note(self, topic: str, seq: int, value: str) -> None:
        """Note what a reader saw (K1)."""
        with self._lock:
            self._note(topic, seq, value)

    def _note(self, topic: str, seq: int, value: str) -> None:
        known = self._seen.setdefault(topic, {}).setdefault(seq, value)
        if known != value:
            self.complaints.append(f"{topic}: seq {seq} was {known!r} and is {value!r} (K1)")

    @property
    def topics(self) -> list[str]:
        return sorted({append.topic for append in self._appends})

    def judge(self, contents: dict[str, dict[int, str]]) -> None:
        """Check the contents of all topics, read while no client writes."""
        assert not self.complaints, self.complaints[:5]
        for topic in self.topics:
            values = contents[topic]
            assert list(values) == list(range(1, len(values) + 1)), f"{topic}: the seqs have a gap (K6)"
            twice = [value for value, count in Counter(values.values()).items() if count > 1]
            assert not twice, f"{topic}: {twice[:5]} are there twice (K4)"
            for seq, value in self._seen.get(topic, {}).items():
                assert values.get(seq) == value, (
                    f"{topic}: seq {seq} is {values.get(seq)!r}, not {value!r} (K2)"
                )
            self._judge_order(topic, set(values.values()))

    def _judge_order(self, topic: str, present: set[str]) -> None:
        appends = [append for append in self._appends if append.topic == topic]
        refused = [one for append in appends if append.outcome == "refused" for one in append.values]
        assert not present & set(refused), f"{topic}: a refused append is there (K5)"
        acked = [append for append in appends if append.outcome == "acknowledged"]
        by_ack = sorted(acked, key=lambda one: one.acked_at)
        at = highest = 0
        for append in sorted(acked, key=lambda one: one.sent_at):
            while at < len(by_ack) and by_ack[at].acked_at < append.sent_at:
                highest = max(highest, by_ack[at].first_seq + len(by_ack[at].values) - 1)
                at += 1
            assert append.first_seq > highest, (
                f"{topic}: seq {append.first_seq} was sent after {highest} was acknowledged (K3)"
            )
