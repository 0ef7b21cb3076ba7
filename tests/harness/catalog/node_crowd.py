"""Nodes with real shards that share one catalog, at random: crashes, lost answers, take-overs, deletions.

Two nodes run shards on disks in memory. A third one is played: it takes topics over with `accept_loss` and
gives out seqs above their ceilings. Checked after each write: no acknowledged seq is given out twice, by any
node. Checked at the end, when everything answers again: each topic is served by the node of its row and by no
other one, no ceiling is below a seq that was given out, and no row of a deleted topic is left. A write that
creates a topic is acknowledged only after the catalog has its row.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

from shared.contract.errors import Refusal
from shared.contract.names import topic_id
from tests.harness.catalog.catalog_oracle import CatalogOracle
from tests.harness.catalog.faulty_catalog import FaultyCatalog
from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.ownership.new_names import WAIT_SECONDS
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.replay import lose_range

NODES: Final = ("a", "b")
THIRD: Final = "c"
TOPICS: Final = ("orders", "events", "cache")
CLASSES: Final = ("fsync", "disk", "memory", "ephemeral")
LOSS: Final = 0.2
WRITE_MAX: Final = 5


class NodeCrowd:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.oracle = CatalogOracle()
        self.catalogs = [FaultyCatalog(self.oracle, self.random, LOSS) for _ in NODES]
        self.nodes = [
            OneShard(node=catalog.node(name)) for name, catalog in zip(NODES, self.catalogs, strict=True)
        ]
        self.given: set[tuple[str, int, int]] = set()
        """Each acknowledged seq, by topic, incarnation and seq."""
        self.deleted: set[tuple[str, int]] = set()
        self.outcomes: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        actions = [self._append] * 10 + [self._use_up] * 2 + [self._pass_time] * 4
        actions += [self._delete, self._end_process, self._checkpoint, self._take_over, self._toggle]
        for _ in range(steps):
            self.random.choice(actions)()
        self._check_end()

    def _node(self) -> OneShard:
        return self.random.choice(self.nodes)

    def _append(self) -> None:
        one, name = self._node(), self.random.choice(TOPICS)
        if name not in one.shard.state.topics:
            one.send_put(name, durability=self.random.choice(CLASSES))
        reply = one.send_append(name, *range(self.random.randint(1, WRITE_MAX)))
        answer = self._answer(one, reply)
        if isinstance(answer, Refusal):
            self.outcomes[answer.code] += 1
            return
        self.outcomes["appended"] += 1
        # Found by its id: it may have departed since.
        epoch = one.shard.state.topics_by_id[topic_id(name)].epoch
        assert (name, epoch, NODES[self.nodes.index(one)]) in self.oracle.created, f"{name} has no row"
        for seq in range(answer.first_seq, answer.last_seq + 1):
            self._give(name, epoch, seq)

    def _answer(self, one: OneShard, reply: RecordedReply) -> Any:
        """Let time pass until a request is answered, which may wait for the catalog."""
        one.settle()
        if not reply.has_answer:
            one.pass_time(1000 * WAIT_SECONDS)
        return reply.answer

    def _give(self, name: str, epoch: int, seq: int) -> None:
        assert (name, epoch, seq) not in self.given, f"seq {seq} of {name} was given out twice"
        self.given.add((name, epoch, seq))

    def _use_up(self) -> None:
        """Use up nearly all seqs below the ceiling, as a busy topic does."""
        one, name = self._node(), self.random.choice(TOPICS)
        topic = one.shard.state.topics.get(name)
        if topic is None or topic.ownership is None or topic.pending_count or topic.is_ephemeral:
            return
        # One more write must fit: the first one beyond the mark is not checked (O3).
        last = topic.ownership.ceiling - self.random.randint(WRITE_MAX, 2 * WRITE_MAX)
        if last > topic.head:
            lose_range(topic, LostRange(topic.head + 1, last, "crash"))
            topic.next_seq = topic.head + 1
            # As an append would have: the ceiling of the log follows the head.
            topic.ceiling = topic.ceiling_logged = max(topic.ceiling, topic.head)
            one.checkpoint()

    def _delete(self) -> None:
        one, name = self._node(), self.random.choice(TOPICS)
        topic = one.shard.state.topics.get(name)
        answer = self._answer(one, one.send_delete_topic(name))
        if topic is not None and not isinstance(answer, Refusal):
            self.outcomes["deleted"] += 1
            self.deleted.add((name, topic.epoch))

    def _end_process(self) -> None:
        end = self.random.choice([OneShard.kill, OneShard.restart, OneShard.reboot, None])
        one = self._node()
        self.outcomes["ended"] += 1
        if end is None:
            one.cut_power(self.random.randrange(1 << 30))
        else:
            end(one)

    def _checkpoint(self) -> None:
        self._node().checkpoint()

    def _take_over(self) -> None:
        name = self.random.choice(TOPICS)
        row = self.oracle.row(name)
        if row is None or row.owner == THIRD:
            if row is not None and self.random.random() < 0.5:
                self.oracle.forget(name, row.ownership)
                self.deleted.add((name, row.incarnation))
            return
        row = self.oracle.adopt(name, THIRD, row.incarnation, row.owner_epoch, accept_loss=True)
        self.outcomes["taken over"] += 1
        for seq in range(row.ceiling + 1, row.ceiling + 5):
            self._give(name, row.incarnation, seq)
        self.oracle.raise_ceiling(name, row.ownership, row.ceiling + 5)

    def _toggle(self) -> None:
        catalog = self.random.choice(self.catalogs)
        catalog.is_away = not catalog.is_away

    def _pass_time(self) -> None:
        self._node().pass_time(self.random.choice([100, 1000, 30_000]))

    def _check_end(self) -> None:
        for catalog in self.catalogs:
            catalog.is_away, catalog.loss = False, 0.0
        for one in self.nodes:
            # A topic that was taken over is noticed at the next request, or at the next start.
            one.kill()
        for _ in range(2):
            for one in self.nodes:
                one.pass_time(60_000)
        for node, one in zip(NODES, self.nodes, strict=True):
            state = one.shard.state
            assert not state.to_forget
            for name, topic in state.topics.items():
                row = self.oracle.row(name)
                assert row is not None, name
                assert (row.owner, row.incarnation) == (node, topic.epoch), name
                assert row.ceiling >= topic.next_seq - 1
            for name, departed in state.departed.items():
                row = self.oracle.row(name)
                assert row is None or (row.owner, row.incarnation) != (node, departed.epoch), name
        for name in self.oracle.topics:
            row = self.oracle.row(name)
            assert row is not None
            if row.owner != THIRD:
                # A node that lost its topic deletes only its own files.
                assert (name, row.incarnation) not in self.deleted, f"{name} was deleted"
                assert name in self.nodes[NODES.index(row.owner)].shard.state.topics, name
        for name, epoch, seq in self.given:
            row = self.oracle.row(name)
            assert row is None or row.incarnation != epoch or seq <= row.ceiling
