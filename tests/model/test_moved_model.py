"""A topic with a random history that moves back and forth is the same after each move as before it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.shard.topic_view import topic_view
from tests.harness.shard.two_shards import TwoShards
from topicsd.engine.read.cursors import put_cursor
from topicsd.engine.requests import NewRecord, ProducerSeq

STEPS = 80
CONFIGS: list[dict[str, Any]] = [
    {},
    {"durability": "fsync"},
    {"cap_records": 9},
    {"ttl_ms": 4000},
    {"type": "queue", "leases_durable": True},
    {"type": "queue", "order_by": "tag", "leases_durable": True},
    {"type": "queue", "max_deliveries": 2, "leases_durable": True},
    {"type": "queue", "fair_by": "tag", "leases_durable": True},
    {"durability": "ephemeral"},
]

pytestmark = pytest.mark.usefixtures("quiet_log")


class History:
    """One topic under random requests, on the shard that has it."""

    def __init__(self, seed: int, config: dict[str, Any]) -> None:
        self.rng = Random(seed)
        self.two = TwoShards(segment_max_events=6)
        self.at = 0
        self.config = config
        self.one.put("t", **config)
        self.given = 0
        """The highest seq that was ever given out."""
        self.produced = 0
        self.keys: dict[str, tuple[int, list[NewRecord]]] = {}
        """The first seq and the records of each key."""
        self.moves = 0

    @property
    def one(self) -> OneShard:
        return self.two.shards[self.at]

    def append(self) -> None:
        count = self.rng.choice((1, 2, 7))
        records = [record(self.rng.random(), tag=self.rng.choice((None, "a", "b"))) for _ in range(count)]
        more: dict[str, Any] = {}
        match self.rng.randrange(4):
            case 0:
                more["idempotency_key"] = f"k{self.given}"
            case 1:
                more["producer"] = ProducerSeq("p", self.produced)
                self.produced += 1
            case 2 if self.config.get("type") == "queue":
                more["delay_ms"] = self.rng.choice((500, 3000))
        answer = self.one.append("t", *records, **more)
        assert answer.first_seq > self.given, "a seq was given out twice"
        self.given = answer.first_seq + count - 1
        if "idempotency_key" in more:
            self.keys[more["idempotency_key"]] = (answer.first_seq, records)

    def delete(self) -> None:
        match self.rng.randrange(3):
            case 0:
                self.one.delete("t", seqs=[self.rng.randint(1, self.given + 1) for _ in range(3)])
            case 1:
                self.one.delete("t", tag="a", before_seq=self.rng.randint(1, self.given + 1))
            case _:
                self.one.delete("t", before_seq=max(1, self.given - 12))

    def work(self) -> None:
        if self.config.get("type") != "queue":
            put_cursor(self.one.shard.state, "t", "c", self.rng.randint(0, self.given), None, RecordedReply())
            self.one.settle()
            return
        seqs = self.one.claimed("t", "w", 3, lease_ms=self.rng.choice((1000, 60_000)))
        settle = self.rng.choice((self.one.ack, self.one.nack, self.one.extend))
        if seqs and self.rng.random() < 0.7:
            settle("t", "w", *seqs[:2])

    def move(self) -> None:
        before = topic_view(self.one, "t")
        self.two.move("t", self.at, is_prepared=self.rng.random() < 0.5)
        self.at = 1 - self.at
        self.moves += 1
        after = topic_view(self.one, "t")
        if self.config.get("durability") == "ephemeral":
            assert (after["head"], after["epoch"]) == (before["head"], before["epoch"])
        else:
            assert after == before
        if self.config.get("durability") == "ephemeral":
            return
        for key, (first_seq, records) in [*self.keys.items()][-3:]:
            answer = self.one.append("t", *records, idempotency_key=key)
            assert (answer.deduped, answer.first_seq) == (True, first_seq)

    def kill(self) -> None:
        before = topic_view(self.one, "t")
        self.two.kill()
        after = topic_view(self.one, "t")
        if self.config.get("durability") != "ephemeral":
            assert after["records"] == before["records"]
            assert (after["live"], after["jobs"]) == (before["live"], before["jobs"])

    def step(self) -> None:
        match self.rng.randrange(12):
            case 0 | 1 | 2 | 3:
                self.append()
            case 4 | 5:
                self.delete()
            case 6 | 7:
                self.work()
            case 8:
                self.one.checkpoint()
            case 9:
                self.move()
            case 10:
                for one in self.two.shards:
                    one.pass_time(self.rng.choice((10, 700)))
            case _:
                self.kill()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_topic_with_any_history_is_the_same_after_a_move(seed: int, config: dict[str, Any]) -> None:
    history = History(seed, config)
    history.append()
    for _ in range(STEPS):
        history.step()
    history.move()
    assert history.moves > 1
