"""A shard with a catalog: rows for its topics, seqs below their ceilings, topics it must not serve."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.catalog.catalog_oracle import CatalogOracle
from tests.harness.catalog.faulty_catalog import FaultyCatalog
from tests.harness.shard.one_shard import OneShard
from topicsd.catalog.catalog import Ownership, TopicRow
from topicsd.engine.ownership import owned
from topicsd.engine.ownership.owned import BLOCK_MIN

A, B = "node-a", "node-b"
RETRY_MS = 60_000


class CatalogShard:
    """A shard of node A, its connection to the catalog, and the catalog."""

    def __init__(self, **settings: Any) -> None:
        self.oracle = CatalogOracle()
        self.catalog = FaultyCatalog(self.oracle)  # type: ignore[arg-type]
        self.one = OneShard(node=self.catalog.node(A), **settings)

    def settle(self) -> None:
        """Let the requests to the catalog be made, also after a pause."""
        self.one.pass_time(RETRY_MS)

    def row(self, name: str = "t") -> TopicRow:
        row = self.oracle.row(name)
        assert row is not None
        return row

    def ownership(self, name: str = "t") -> Ownership:
        return Ownership(A, self.one.topic(name).epoch, 1)

    def take_over(self, name: str = "t") -> TopicRow:
        """Have another node adopt the topic of this one."""
        row = self.row(name)
        return self.oracle.adopt(name, B, row.incarnation, row.owner_epoch, accept_loss=True)

    def use_up(self, name: str = "t") -> None:
        """Give out all seqs up to the ceiling that the topic knows, as lost ones."""
        from topicsd.engine.records.lost_range import LostRange
        from topicsd.engine.replay import lose_range

        topic = self.one.topic(name)
        assert topic.ownership is not None
        last = topic.ownership.ceiling - 3
        lose_range(topic, LostRange(topic.head + 1, last, "crash"))
        topic.next_seq = topic.head + 1


def test_a_new_topic_gets_a_row_with_a_ceiling_above_its_head() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1, 2, 3)
    shard.settle()
    row = shard.row()
    assert (row.owner, row.owner_epoch, row.incarnation) == (A, 1, shard.one.topic("t").epoch)
    assert row.ceiling >= 3 + BLOCK_MIN


def test_an_idle_shard_asks_nothing() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1)
    shard.settle()
    before = shard.catalog.calls.total()
    shard.one.pass_time(3_600_000)
    assert shard.catalog.calls.total() == before


def test_writes_continue_while_the_catalog_is_away() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1)
    shard.catalog.is_away = True
    shard.one.append("t", *range(100))
    shard.settle()
    shard.one.append("t", *range(100))
    shard.one.kill()
    assert shard.one.append("t", *range(100)).last_seq == 301


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_a_ceiling_is_raised_before_it_is_reached(durability: str) -> None:
    shard = CatalogShard()
    shard.one.put("t", durability=durability)
    shard.settle()
    before = shard.row().ceiling
    shard.use_up()
    shard.one.append("t", 1)
    shard.settle()
    assert shard.row().ceiling >= before + BLOCK_MIN - 3
    assert len(shard.one.append("t", *range(10)).__struct_fields__)


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_no_seq_above_the_ceiling_is_given_out_while_the_catalog_is_away(durability: str) -> None:
    shard = CatalogShard()
    shard.one.put("t", durability=durability)
    shard.settle()
    ceiling = shard.row().ceiling
    shard.catalog.is_away = True
    shard.use_up()
    shard.one.append("t", 1)
    shard.one.append("t", 2, 3)
    refusal = shard.one.refused_append("t", 4)
    assert refusal.code == "catalog_unavailable"
    assert str(ceiling) in refusal.message
    assert shard.one.topic("t").head == ceiling
    shard.catalog.is_away = False
    shard.settle()
    assert shard.one.append("t", 4).last_seq == ceiling + 1


@pytest.mark.parametrize("kill", [OneShard.kill, OneShard.restart, OneShard.cut_power])
def test_a_restart_keeps_the_ceiling_while_the_catalog_is_away(kill: Any) -> None:
    shard = CatalogShard()
    shard.one.put("t", durability="fsync")
    shard.settle()
    ceiling = shard.row().ceiling
    shard.one.checkpoint()
    shard.catalog.is_away = True
    kill(shard.one)
    shard.settle()
    shard.use_up()
    shard.one.append("t", 1, 2, 3)
    assert shard.one.refused_append("t", 4).code == "catalog_unavailable"
    assert shard.one.topic("t").head == ceiling


def test_an_answer_to_create_that_is_lost_leaves_the_ceiling_of_the_request() -> None:
    # A topic from before the server had a catalog.
    shard = CatalogShard()
    node, shard.one.node = shard.one.node, None
    shard.one.restart()
    shard.one.put("t", durability="fsync")
    shard.one.node = node
    shard.one.restart()
    shard.catalog.before_call = lambda verb: setattr(shard.catalog, "is_away", verb != "list")
    shard.settle()
    # The request is done after all, and the node does not know it.
    shard.oracle.create("t", 1, shard.one.topic("t").epoch, A, shard.one.topic("t").ownership.ceiling)  # type: ignore[union-attr]
    shard.one.kill()
    shard.settle()
    shard.use_up()
    shard.one.append("t", 1, 2, 3)
    assert shard.one.refused_append("t", 4).code == "catalog_unavailable"
    assert shard.one.topic("t").head <= shard.row().ceiling


def test_a_topic_that_another_node_took_over_departs_at_the_next_request() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1, 2)
    shard.settle()
    shard.take_over()
    shard.use_up()
    shard.one.append("t", 1)
    shard.settle()
    refusal = shard.one.refused_append("t", 1)
    assert refusal.code == "topic_moved"
    assert refusal.detail == {"state": "moved", "node": B, "owner_epoch": 2}
    assert shard.one.refused_read("t").code == "topic_moved"
    assert shard.one.send_delete_topic("t").code == "topic_moved"
    assert shard.one.send_put("t").code == "topic_moved"


@pytest.mark.parametrize("end", [OneShard.kill, OneShard.restart, OneShard.cut_power])
def test_a_departed_topic_stays_departed_and_keeps_its_files(end: Any) -> None:
    shard = CatalogShard()
    shard.one.append("t", 1, 2)
    shard.settle()
    shard.take_over()
    shard.one.restart()
    shard.settle()
    assert shard.one.refused_append("t", 1).code == "topic_moved"
    shard.one.checkpoint()
    shard.catalog.is_away = True
    end(shard.one)
    end(shard.one)
    assert shard.one.refused_append("t", 1).code == "topic_moved"
    (topic,) = shard.one.shard.state.topics_by_id.values()
    assert (topic.name, topic.head, len(topic.runs[0].times_ms)) == ("t", 2, 2)
    assert shard.one.shard.state.totals.live_count == 0


def test_a_topic_that_was_sealed_meanwhile_is_refused_as_sealed() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1, 2)
    shard.settle()
    topic = shard.oracle.topics["t"]
    topic.is_sealed, topic.sealed_key = True, "key"
    shard.one.restart()
    shard.settle()
    assert shard.one.refused_append("t", 1).code == "topic_sealed"


def test_a_topic_made_on_two_nodes_before_they_had_a_catalog_is_served_by_the_first() -> None:
    shard = CatalogShard()
    node, shard.one.node = shard.one.node, None
    shard.one.restart()
    shard.one.append("t", 1)
    shard.oracle.create("t", 1, 77, B, 10)
    shard.one.node = node
    shard.one.restart()
    shard.settle()
    refusal = shard.one.refused_append("t", 1)
    assert refusal.detail == {"state": "moved", "node": B, "owner_epoch": 1}


def test_a_copy_older_than_what_was_exported_is_not_served() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1, 2)
    shard.settle()
    shard.oracle.topics["t"].exported_to = 5
    shard.one.restart()
    shard.settle()
    refusal = shard.one.refused_append("t", 1)
    assert (refusal.code, refusal.detail and refusal.detail["state"]) == ("topic_moved", "outdated")


def test_a_topic_whose_row_is_gone_is_not_created_again() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1)
    shard.settle()
    shard.oracle.forget("t", shard.ownership())
    shard.one.restart()
    shard.settle()
    assert shard.oracle.row("t") is None
    assert "deleted on another node" in shard.one.refused_append("t", 1).message


@pytest.mark.parametrize("end", [None, OneShard.kill, OneShard.restart, OneShard.cut_power])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_the_row_of_a_deleted_topic_is_removed_in_the_end(end: Any, has_checkpoint: bool) -> None:
    shard = CatalogShard()
    shard.one.append("t", 1)
    shard.settle()
    shard.catalog.is_away = True
    shard.one.delete_topic("t")
    shard.settle()
    if has_checkpoint:
        shard.one.checkpoint()
    if end is not None:
        end(shard.one)
    assert shard.oracle.row("t") is not None
    shard.catalog.is_away = False
    shard.settle()
    assert shard.oracle.row("t") is None


def test_a_topic_created_again_gets_the_row_of_its_new_epoch() -> None:
    shard = CatalogShard()
    shard.one.append("t", 1)
    shard.settle()
    old = shard.row().incarnation
    shard.catalog.is_away = True
    shard.one.delete_topic("t")
    reply = shard.one.send_append("t", 1)
    shard.settle()
    assert reply.code == "catalog_unavailable"
    shard.one.kill()
    shard.catalog.is_away = False
    reply = shard.one.send_append("t", 1)
    shard.settle()
    assert reply.answer.first_seq == 1
    assert shard.row().incarnation == shard.one.topic("t").epoch != old
    assert shard.one.append("t", 1).first_seq == 2


def test_ten_thousand_topics_get_their_rows_in_few_rounds() -> None:
    shard = CatalogShard()
    for number in range(10_000):
        shard.one.send_append(f"t{number}", 1)
    shard.settle()
    assert len(shard.oracle.topics) == 10_000
    assert shard.catalog.calls.total() < 100


def test_epochs_of_two_nodes_differ_and_fit_into_a_double() -> None:
    epochs: list[int] = []
    for tag in (1, 2):
        shard = CatalogShard()
        shard.one.shard.state.epoch_tag = tag
        for number in range(50):
            shard.one.put(f"t{number}")
            epochs.append(shard.one.topic(f"t{number}").epoch)
        shard.one.kill()
        shard.one.put("next")
        assert shard.one.topic("next").epoch > epochs[-1]
    assert len(set(epochs)) == 100
    assert max(epochs) < 1 << 53


def test_a_deleted_topic_that_was_created_again_has_a_higher_epoch() -> None:
    shard = CatalogShard()
    before = 0
    for _ in range(5):
        shard.one.send_put("t")
        shard.settle()
        assert shard.one.topic("t").epoch > before
        before = shard.one.topic("t").epoch
        shard.one.delete_topic("t")
    assert shard.one.checkpoint() is None
    shard.one.kill()
    shard.one.send_put("t")
    shard.settle()
    assert shard.one.topic("t").epoch > before


def test_a_topic_that_was_deleted_by_its_new_owner_does_not_come_back() -> None:
    # A topic from before the server had a catalog.
    shard = CatalogShard()
    node, shard.one.node = shard.one.node, None
    shard.one.restart()
    shard.one.put("t", durability="fsync")
    shard.one.node = node
    shard.one.restart()
    shard.catalog.before_call = lambda verb: setattr(shard.catalog, "lost_answers", int(verb == "create"))
    shard.one.pass_time(100)
    assert shard.one.topic("t").ownership.owner_epoch == 0  # type: ignore[union-attr]
    row = shard.row()
    shard.take_over()
    shard.oracle.forget("t", Ownership(B, row.incarnation, 2))
    shard.catalog.before_call = None
    shard.catalog.lost_answers = 0
    shard.settle()
    assert shard.oracle.row("t") is None
    assert shard.one.refused_append("t", 1).detail == {"state": "forgotten", "node": "", "owner_epoch": 0}


def test_a_row_that_was_created_after_its_topic_was_forgotten_does_not_block_the_name() -> None:
    shard = CatalogShard()
    shard.one.put("t")
    shard.settle()
    late = shard.row()
    shard.one.delete_topic("t")
    shard.settle()
    assert shard.oracle.row("t") is None
    # The first request arrives, which was given up.
    shard.oracle.create("t", late.topic_id, late.incarnation, A, late.ceiling)
    shard.one.send_append("t", 1)
    shard.settle()
    assert shard.row().incarnation == shard.one.topic("t").epoch != late.incarnation
    assert shard.one.append("t", 2).first_seq == 2


def test_blocks_smaller_than_a_write_are_raised_ahead_without_a_request_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owned, "BLOCK_MIN", 60)
    shard = CatalogShard()
    shard.one.put("t")
    shard.settle()
    idle = shard.catalog.calls["raise_ceiling"]
    shard.settle()
    assert shard.catalog.calls["raise_ceiling"] == idle
    for number in range(100):
        shard.one.append("t", *range(5))
        shard.one.pass_time(100)
        assert shard.row().ceiling >= 5 * (number + 1)
    assert shard.catalog.calls["raise_ceiling"] - idle <= 20


@pytest.mark.parametrize("end", [OneShard.restart, OneShard.kill])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_forgotten_topic_is_deleted_to_free_its_name(end: Any, has_checkpoint: bool) -> None:
    shard = CatalogShard()
    shard.one.append("t", 1, 2)
    shard.settle()
    epoch = shard.one.topic("t").epoch
    shard.oracle.forget("t", shard.ownership())
    shard.one.restart()
    shard.settle()
    assert shard.one.refused_append("t", 3).code == "topic_moved"
    assert shard.one.delete_topic("t").deleted
    if has_checkpoint:
        shard.one.checkpoint()
    end(shard.one)
    shard.settle()
    state = shard.one.shard.state
    assert (state.departed, state.to_forget, state.topics_by_id) == ({}, {}, {})
    shard.one.append("t", 4)
    assert shard.one.seqs("t") == [1]
    assert shard.one.topic("t").epoch > epoch
    shard.settle()
    assert shard.row().incarnation == shard.one.topic("t").epoch


def test_other_departed_topics_are_not_deleted_here() -> None:
    shard = CatalogShard()
    for name in ("moved", "sealed"):
        shard.one.append(name, 1)
    shard.settle()
    shard.take_over("moved")
    shard.oracle.seal("sealed", shard.ownership("sealed"), 0, "key")
    shard.one.restart()
    shard.settle()
    reply = shard.one.send_delete_topic("moved")
    shard.one.settle()
    assert reply.code == "topic_moved"
    assert reply.answer.message.endswith("; send the request there")
    reply = shard.one.send_delete_topic("sealed")
    shard.one.settle()
    assert reply.code == "topic_sealed"
    assert reply.answer.message.endswith("; adopt it on the node that continues it, and delete it there")
    assert len(shard.one.shard.state.topics_by_id) == 2
