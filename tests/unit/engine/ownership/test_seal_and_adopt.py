"""A topic that moves between two nodes: sealed and adopted, or adopted from a node that is lost."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.errors import Refusal
from tests.harness.catalog.catalog_oracle import CatalogOracle
from tests.harness.catalog.faulty_catalog import FaultyCatalog
from tests.harness.machine.fake_store import FakeStore
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.requests import ProducerSeq

SETTINGS: dict[str, Any] = {"segment_max_events": 10, "checkpoint_interval_ms": 1000, "reader_grace_ms": 0}


class TwoNodes:
    def __init__(self, **settings: Any) -> None:
        self.oracle = CatalogOracle()
        self.store = FakeStore()
        self.catalogs = [FaultyCatalog(self.oracle) for _ in range(2)]  # type: ignore[arg-type]
        self.a, self.b = (
            OneShard(node=catalog.node(name), store=self.store, **{**SETTINGS, **settings})
            for catalog, name in zip(self.catalogs, "ab", strict=True)
        )
        # Epochs are ordinals: the second node must not give those of the first one.
        self.b.append("other", *range(1000))

    def send(self, one: OneShard, job: BackgroundJob[Any]) -> RecordedReply:
        reply = RecordedReply()
        assert one.shard.exporter is not None
        one.shard.exporter.run(job, reply)
        return reply

    def run(self, one: OneShard, job: BackgroundJob[Any]) -> Any:
        reply = self.send(one, job)
        one.pass_time(20_000)
        assert not isinstance(reply.answer, Exception), reply.answer
        return reply.answer

    def seal(self, one: OneShard, name: str = "t") -> Any:
        assert one.shard.hand_on is not None
        return self.run(one, one.shard.hand_on.seal(name))

    def adopt(self, one: OneShard, name: str = "t", accept_loss: bool = False) -> Any:
        assert one.shard.hand_on is not None
        return self.run(one, one.shard.hand_on.adopt(name, accept_loss))


def records_of(one: OneShard, name: str = "t") -> list[tuple[int, bytes, bytes]]:
    return [
        (each.seq, bytes(each.data), each.tag)
        for each in one.read(name, limit=10_000, with_tags=True).records
    ]


def filled(nodes: TwoNodes, **config: Any) -> None:
    nodes.a.put("t", **config)
    for number in range(37):
        nodes.a.append("t", record(number, tag=f"tag-{number % 3}"))
    nodes.a.delete("t", seqs=[3, 15])
    nodes.a.pass_time(10_000)


def test_a_sealed_topic_continues_at_the_other_node_without_a_gap() -> None:
    nodes = TwoNodes()
    filled(nodes)
    nodes.a.append("t", "last")
    before, epoch = records_of(nodes.a), nodes.a.topic("t").epoch
    row = nodes.seal(nodes.a)
    assert (row.state, row.ceiling, row.exported_to) == ("sealed", 38, 38)
    assert nodes.a.refused_append("t", 1).code == "topic_sealed"
    topic = nodes.adopt(nodes.b)
    assert topic.epoch == epoch
    assert records_of(nodes.b) == before
    assert nodes.b.append("t", "next").first_seq == 39
    nodes.b.pass_time(20_000)
    row = nodes.oracle.row("t")
    assert row is not None
    assert (row.owner, row.owner_epoch) == ("b", 2)
    assert row.ceiling > 39


def test_a_topic_comes_back_to_the_node_that_sealed_it() -> None:
    nodes = TwoNodes()
    filled(nodes)
    before = records_of(nodes.a)
    nodes.seal(nodes.a)
    nodes.adopt(nodes.b)
    nodes.b.append("t", "from b")
    nodes.seal(nodes.b)
    assert not isinstance(nodes.adopt(nodes.a), Refusal)
    assert records_of(nodes.a)[:-1] == before
    assert nodes.a.append("t", "from a").first_seq == 39
    nodes.a.kill()
    nodes.a.pass_time(10_000)
    assert [one[1] for one in records_of(nodes.a)[-2:]] == [b'"from b"', b'"from a"']
    nodes.b.restart()
    assert nodes.b.refused_append("t", 1).detail == {"state": "moved", "node": "a", "owner_epoch": 3}


def test_a_queue_moves_with_its_leases() -> None:
    nodes = TwoNodes()
    filled(nodes, type="queue")
    claimed = nodes.a.claimed("t", "worker", 5, 600_000)
    nodes.a.ack("t", "worker", claimed[0])
    nodes.seal(nodes.a)
    nodes.adopt(nodes.b)
    assert nodes.b.ack("t", "worker", *claimed[1:3]).done == claimed[1:3]
    rest = nodes.b.claimed("t", "other", 1000, 1000)
    assert not set(rest) & set(claimed)


def test_a_topic_of_a_lost_node_continues_above_its_ceiling() -> None:
    nodes = TwoNodes(export_interval_ms=0)
    filled(nodes)
    ceiling = nodes.oracle.topics["t"].ceiling
    before = records_of(nodes.a)
    refusal = nodes.adopt(nodes.b)
    assert (refusal.code, "owned by node a" in refusal.message) == ("topic_moved", True)
    topic = nodes.adopt(nodes.b, accept_loss=True)
    assert topic.lost.ranges[-1] == (31, ceiling, "node_lost")
    assert records_of(nodes.b) == [one for one in before if one[0] <= 30]
    assert nodes.b.append("t", "next").first_seq == ceiling + 1
    nodes.a.restart()
    nodes.a.pass_time(10_000)
    assert nodes.a.refused_append("t", 1).detail == {"state": "moved", "node": "b", "owner_epoch": 2}


def test_an_adopt_does_not_delete_records_that_are_nowhere_else_without_a_question() -> None:
    nodes = TwoNodes()
    filled(nodes)
    nodes.seal(nodes.a)
    nodes.adopt(nodes.b)
    # Taken for lost, the node acknowledges two more records.
    nodes.b.append("t", "only here", "and here")
    nodes.adopt(nodes.a, accept_loss=True)
    nodes.b.restart()
    nodes.b.pass_time(10_000)
    assert nodes.b.refused_append("t", 1).code == "topic_moved"
    nodes.seal(nodes.a)
    refusal = nodes.adopt(nodes.b)
    assert (refusal.code, refusal.detail) == ("topic_not_empty", {"count": 2})
    row = nodes.oracle.row("t")
    assert row is not None
    assert row.state == "sealed"
    nodes.adopt(nodes.b, accept_loss=True)
    assert len(records_of(nodes.b)) == 35


@pytest.mark.parametrize("verb", ["raise_ceiling", "publish_extents"])
def test_a_seal_waits_for_an_export_of_the_topic(verb: str) -> None:
    nodes = TwoNodes()
    filled(nodes)
    before = len(nodes.store.objects)
    nodes.a.append("t", *range(40))
    nodes.a.checkpoint()
    replies: list[RecordedReply] = []

    def before_call(called: str) -> None:
        if called == verb and not replies:
            assert nodes.a.shard.hand_on is not None
            replies.append(nodes.send(nodes.a, nodes.a.shard.hand_on.seal("t")))

    nodes.catalogs[0].before_call = before_call
    nodes.a.pass_time(30_000)
    (reply,) = replies
    assert (reply.answer.state, reply.answer.exported_to) == ("sealed", 77)
    # Each segment is put once: .data, .idx and .tags of the five of this export, and two state objects.
    stems = {key.rpartition(".")[0].rpartition("-")[0] for key in nodes.store.objects if "seg-" in key}
    data = [key for key in nodes.store.objects if key.endswith(".data")]
    assert len(stems) == len(data)
    assert before < len(nodes.store.objects)


def test_a_seal_whose_answer_is_lost_is_repeated_and_writes_wait() -> None:
    nodes = TwoNodes()
    filled(nodes)
    assert nodes.a.shard.hand_on is not None
    nodes.catalogs[0].before_call = lambda verb: setattr(
        nodes.catalogs[0], "lost_answers", int(verb == "seal")
    )
    reply = nodes.send(nodes.a, nodes.a.shard.hand_on.seal("t"))
    nodes.a.pass_time(10_000)
    assert not reply.has_answer
    append = nodes.a.send_append("t", 1)
    nodes.a.settle()
    assert not append.has_answer
    nodes.catalogs[0].before_call = None
    nodes.a.pass_time(10_000)
    assert reply.answer.state == "sealed"
    assert append.code == "topic_sealed"


@pytest.mark.parametrize("end", [OneShard.kill, OneShard.cut_power])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_seal_in_doubt_is_repeated_after_a_crash(end: Any, is_done: bool) -> None:
    nodes = TwoNodes()
    filled(nodes)
    catalog = nodes.catalogs[0]

    def fail(verb: str) -> None:
        catalog.is_away = verb == "seal" and not is_done
        catalog.lost_answers = int(verb == "seal" and is_done)

    catalog.before_call = fail
    assert nodes.a.shard.hand_on is not None
    nodes.send(nodes.a, nodes.a.shard.hand_on.seal("t"))
    nodes.a.pass_time(10_000)
    end(nodes.a)
    append = nodes.a.send_append("t", 1)
    nodes.a.settle()
    assert not append.has_answer
    catalog.before_call, catalog.is_away = None, False
    nodes.a.pass_time(10_000)
    assert append.code == "topic_sealed"
    row = nodes.oracle.row("t")
    assert row is not None
    assert row.state == "sealed"
    assert not isinstance(nodes.adopt(nodes.b), Refusal)


def test_a_store_that_is_away_leaves_the_topic_in_use() -> None:
    nodes = TwoNodes()
    filled(nodes)
    nodes.store.faults = ["lost request"] * 1000
    assert nodes.seal(nodes.a).code == "catalog_unavailable"
    nodes.store.faults = []
    assert nodes.a.append("t", 1).first_seq == 38
    assert nodes.seal(nodes.a).state == "sealed"


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_topics_of_every_class_and_without_records_move(durability: str) -> None:
    nodes = TwoNodes()
    nodes.a.put("t", durability=durability)
    nodes.a.pass_time(10_000)
    assert nodes.seal(nodes.a).state == "sealed"
    assert not isinstance(nodes.adopt(nodes.b), Refusal)
    assert nodes.b.append("t", 1).first_seq == 1
    assert nodes.b.state("t").config.durability == durability


def test_a_seal_that_was_logged_and_never_sent_can_be_adopted_whole_with_loss() -> None:
    """The complete state goes with the newest extent, before the seal is logged."""
    nodes = TwoNodes()
    filled(nodes)
    before = records_of(nodes.a)
    nodes.catalogs[0].before_call = lambda verb: setattr(nodes.catalogs[0], "is_away", verb == "seal")
    assert nodes.a.shard.hand_on is not None
    nodes.send(nodes.a, nodes.a.shard.hand_on.seal("t"))
    nodes.a.pass_time(10_000)
    topic = nodes.adopt(nodes.b, accept_loss=True)
    assert not isinstance(topic, Refusal), topic
    assert records_of(nodes.b) == before


@pytest.mark.parametrize("end", [OneShard.kill, OneShard.cut_power])
def test_an_adopt_that_a_crash_interrupted_is_finished_by_the_next_start(end: Any) -> None:
    nodes = TwoNodes()
    filled(nodes)
    before = records_of(nodes.a)
    nodes.seal(nodes.a)
    nodes.catalogs[1].before_call = lambda verb: setattr(
        nodes.catalogs[1], "lost_answers", int(verb == "adopt")
    )
    assert nodes.adopt(nodes.b).code == "catalog_unavailable"
    nodes.catalogs[1].before_call, nodes.catalogs[1].lost_answers = None, 0
    end(nodes.b)
    nodes.b.pass_time(20_000)
    assert records_of(nodes.b) == before
    assert nodes.b.append("t", 1).first_seq == 38


def test_a_topic_whose_files_are_lost_is_not_adopted_without_a_question() -> None:
    nodes = TwoNodes()
    filled(nodes)
    nodes.seal(nodes.a)
    empty = nodes.b.disk.after_process_kill()
    nodes.adopt(nodes.b)
    nodes.b.append("t", "of b")
    nodes.b.pass_time(10_000)
    nodes.b.open(empty)
    nodes.b.pass_time(60_000)
    assert nodes.b.refused_append("t", 1, create=False).code == "topic_not_found"
    assert nodes.adopt(nodes.b).code == "topic_moved"
    ceiling = nodes.oracle.topics["t"].ceiling
    topic = nodes.adopt(nodes.b, accept_loss=True)
    assert topic.head == ceiling
    assert nodes.oracle.topics["t"].owner_epoch == 3


def test_adopt_uses_the_state_of_a_later_owner_although_all_up_to_the_ceiling_is_exported() -> None:
    nodes = TwoNodes()
    filled(nodes)
    nodes.seal(nodes.a)
    nodes.adopt(nodes.b)
    nodes.b.append("t", *range(10))
    nodes.b.delete("t", seqs=[1, 2])
    nodes.b.pass_time(400_000)
    before = records_of(nodes.b)
    topic = nodes.oracle.topics["t"]
    assert topic.sealed_key is not None
    # As when the owner has used its ceiling to the last seq.
    topic.ceiling = topic.exported_to
    nodes.adopt(nodes.a, accept_loss=True)
    assert records_of(nodes.a) == before


def test_two_adopts_of_a_topic_at_the_same_time_are_one() -> None:
    nodes = TwoNodes()
    filled(nodes)
    nodes.seal(nodes.a)
    assert nodes.b.shard.hand_on is not None
    replies = [nodes.send(nodes.b, nodes.b.shard.hand_on.adopt("t", False)) for _ in range(2)]
    nodes.b.pass_time(20_000)
    assert replies[1].code == "throttled"
    assert not isinstance(replies[0].answer, Refusal | Exception)


def test_a_producer_repeats_the_write_that_was_lost_with_its_node() -> None:
    nodes = TwoNodes(export_interval_ms=0)
    nodes.a.put("t", durability="fsync")
    for number in range(6):
        nodes.a.append("t", number, producer=ProducerSeq("p" if number < 5 else "q", number + 1))
        nodes.a.append("t", number, idempotency_key=f"k{number}")
    nodes.a.pass_time(10_000)
    topic = nodes.adopt(nodes.b, accept_loss=True)
    assert [one[0] for one in records_of(nodes.b)] == list(range(1, 11))
    end = topic.lost.ranges[-1][1]
    answers = [
        nodes.b.append("t", 5, producer=ProducerSeq("q", 6)),
        nodes.b.append("t", 5, idempotency_key="k5"),
        nodes.b.append("t", 4, producer=ProducerSeq("p", 5)),
        nodes.b.append("t", 4, idempotency_key="k4"),
    ]
    assert [(one.deduped, one.first_seq) for one in answers] == [
        (False, end + 1),
        (False, end + 2),
        (True, 9),
        (True, 10),
    ]
