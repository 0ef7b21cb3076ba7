"""Names of topics: the catalog grants each before a write is acknowledged, and says when one is free."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.errors import Refusal
from shared.contract.topic_config import Durability, TopicConfigPatch
from tests.harness.catalog.catalog_oracle import CatalogOracle
from tests.harness.catalog.faulty_catalog import FaultyCatalog
from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.catalog.catalog import Ownership, TopicRow
from topicsd.engine.bundle.gather import depart, freeze
from topicsd.engine.ownership.departed import SEALED, refuse_departed
from topicsd.engine.ownership.new_names import HOLD_SECONDS, WAIT_SECONDS
from topicsd.engine.ownership.owned import BLOCK_MIN
from topicsd.engine.ownership.rounds import set_aside

A, B = "node-a", "node-b"


class NamingNode:
    """A shard of one node with its connection to the catalog."""

    def __init__(self, oracle: CatalogOracle | None = None, name: str = A, **settings: Any) -> None:
        self.oracle = oracle or CatalogOracle()
        self.catalog = FaultyCatalog(self.oracle)  # type: ignore[arg-type]
        self.one = OneShard(node=self.catalog.node(name), **settings)
        self.settle()

    def row(self, name: str = "t") -> TopicRow:
        row = self.oracle.row(name)
        assert row is not None
        return row

    def settle(self, ms: float = 1000) -> None:
        self.one.pass_time(ms)

    def take_over(self, node: str = B) -> TopicRow:
        row = self.row()
        return self.oracle.adopt("t", node, row.incarnation, row.owner_epoch, accept_loss=True)

    def seal(self) -> None:
        """Seal the topic in the catalog, and have it and its files depart."""
        state, topic = self.one.shard.state, self.one.topic("t")
        row = self.oracle.seal("t", self.row().ownership, 0, "key")
        freeze(state, topic)
        set_aside(state, topic, SEALED, row)
        reply = RecordedReply()
        depart(state, topic, refuse_departed(state.departed["t"]), reply)
        self.one.settle()
        assert reply.code is None


def test_a_new_topic_is_acknowledged_after_its_row_is_in_the_catalog() -> None:
    node = NamingNode()
    seen: list[bool] = []
    reply: list[RecordedReply] = []
    node.catalog.before_call = lambda verb: seen.append(reply[0].has_answer) if reply else None
    reply.append(node.one.send_append("t", 1, 2))
    node.one.settle()
    assert reply[0].answer.first_seq == 1
    assert seen
    assert not any(seen)
    row = node.row()
    assert (row.owner, row.incarnation) == (A, node.one.topic("t").epoch)
    assert row.ceiling >= 2 + BLOCK_MIN
    assert node.one.topic("t").ownership.ceiling == row.ceiling  # type: ignore[union-attr]


@pytest.mark.parametrize("end", [OneShard.kill, OneShard.restart, OneShard.cut_power])
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_a_restart_knows_what_was_granted_without_the_catalog(end: Any, durability: Durability) -> None:
    node = NamingNode()
    node.one.append("a", 1, config=TopicConfigPatch(durability=durability))
    node.one.put("b", durability=durability)
    node.catalog.is_away = True
    end(node.one)
    for name in "ab":
        owned, row = node.one.topic(name).ownership, node.oracle.row(name)
        assert row is not None
        assert owned is not None
        assert (owned.owner_epoch, owned.ceiling, node.one.topic(name).epoch) == (
            1,
            row.ceiling,
            row.incarnation,
        )
        assert node.one.append(name, 1).created is False


def test_a_topic_of_another_node_is_not_created_here() -> None:
    oracle = CatalogOracle()
    first, second = NamingNode(oracle, A), NamingNode(oracle, B)
    first.one.append("t", 1)
    for reply in (second.one.send_append("t", 2), second.one.send_put("t"), second.one.send_append("t", 3)):
        second.one.settle()
        assert reply.code == "topic_moved"
        assert reply.answer.detail == {"state": "moved", "node": A, "owner_epoch": 1}
    assert not second.one.shard.state.topics_by_id
    assert first.one.append("t", 4).first_seq == 2
    first.seal()
    second.settle()
    assert second.one.refused_append("t", 5).code == "topic_sealed"


def test_of_two_nodes_that_create_a_topic_at_once_one_gets_it() -> None:
    oracle = CatalogOracle()
    first, second = NamingNode(oracle, A), NamingNode(oracle, B)
    replies = [first.one.send_append("t", 1), second.one.send_append("t", 2)]
    second.one.settle()
    first.one.settle()
    assert [reply.code for reply in replies] == ["topic_moved", None]
    assert first.row().owner == B
    assert second.one.seqs("t") == [1]


def test_requests_for_a_name_wait_for_its_row_and_run_in_order() -> None:
    node = NamingNode()
    replies = [
        node.one.send_append("t", 1),
        node.one.send_append("t", 2, create=False),
        node.one.send_put("t", ttl_ms=5000),
        node.one.send_append("t", 3),
    ]
    assert not any(reply.has_answer for reply in replies)
    node.one.settle()
    first, second, put, third = (reply.answer for reply in replies)
    assert (first.first_seq, second.first_seq, third.first_seq) == (1, 2, 3)
    assert (first.created, second.created, put.created) == (True, False, False)
    assert node.catalog.calls["create_all"] == 1
    replies = [node.one.send_append("other", 1), node.one.send_delete_topic("other")]
    node.one.settle()
    assert replies[1].answer.deleted


def test_a_request_that_is_refused_anyway_asks_the_catalog_nothing() -> None:
    node = NamingNode(max_record_bytes=100)
    assert node.one.refused_append("t", "x" * 200).code == "record_too_large"
    assert node.one.refused_append("t", 1, expected_head=5).code == "head_mismatch"
    assert node.one.refused_append("t", 1, create=False).code == "topic_not_found"
    assert node.one.refused_append("bad name", 1).code == "invalid_request"
    assert not node.catalog.calls["create_all"]


def test_a_new_topic_is_refused_while_the_catalog_is_away_and_others_are_not() -> None:
    node = NamingNode()
    node.one.append("old", 1)
    node.catalog.is_away = True
    refusal = node.one.refused_append("t", 1)
    assert (refusal.code, refusal.retry_after_ms) == ("catalog_unavailable", 1000)
    assert node.one.send_put("t").code == "catalog_unavailable"
    assert node.one.send_append("more", 1).code == "catalog_unavailable"
    assert node.one.append("old", 2).first_seq == 2
    assert "t" not in node.one.shard.state.topics
    node.settle(20_000)
    assert node.one.shard.catalog is not None
    assert node.one.shard.catalog.state.away_since is not None
    node.catalog.is_away = False
    node.settle(1000)
    assert node.one.append("t", 1).first_seq == 1
    assert node.one.append("more", 1).first_seq == 1
    assert node.one.shard.catalog.state.away_since is None


def test_a_request_that_gets_no_answer_is_repeated_with_the_same_incarnation() -> None:
    node = NamingNode()
    node.catalog.lost_answers = 2
    assert node.one.refused_append("t", 1).code == "catalog_unavailable"
    incarnation = node.row().incarnation
    node.settle(3000)
    assert node.one.append("t", 1).first_seq == 1
    assert node.row().incarnation == node.one.topic("t").epoch == incarnation


def test_a_request_does_not_wait_longer_for_a_catalog_that_hangs() -> None:
    node = NamingNode()
    reply = node.one.send_append("t", 1)
    # The thread does not return from its call.
    node.one.loop.advance(1000 * WAIT_SECONDS - 1)
    assert not reply.has_answer
    node.one.loop.advance(1)
    assert reply.code == "catalog_unavailable"
    node.one.settle()
    assert node.one.append("t", 1).first_seq == 1
    assert node.catalog.calls["create_all"] == 1


def test_a_row_that_no_topic_uses_is_removed() -> None:
    node = NamingNode()
    node.catalog.lost_answers = 1
    assert node.one.refused_append("t", 1).code == "catalog_unavailable"
    node.settle(1000 * HOLD_SECONDS - 1000)
    assert node.oracle.row("t") is not None
    node.settle(10_000)
    assert node.oracle.row("t") is None
    assert node.one.append("t", 1).first_seq == 1
    node.settle(1000 * HOLD_SECONDS + 1000)
    assert node.row().incarnation == node.one.topic("t").epoch


@pytest.mark.parametrize("end", [OneShard.kill, OneShard.restart, OneShard.cut_power])
def test_a_row_that_a_crash_left_without_a_topic_is_removed_by_the_start(end: Any) -> None:
    node = NamingNode()
    node.one.append("other", 1)
    node.catalog.lost_answers = 1
    assert node.one.refused_append("t", 1).code == "catalog_unavailable"
    assert node.row()
    end(node.one)
    node.settle()
    assert node.oracle.row("t") is None
    assert node.oracle.row("other") is not None


def test_a_topic_can_be_created_while_a_start_removes_the_row_of_its_name() -> None:
    node = NamingNode()
    node.catalog.lost_answers = 1
    assert node.one.refused_append("t", 1).code == "catalog_unavailable"
    node.one.kill()
    reply = node.one.send_append("t", 1)
    node.settle()
    assert reply.answer.first_seq == 1
    node.settle(10_000)
    assert node.row().incarnation == node.one.topic("t").epoch
    assert not node.one.shard.state.to_forget


def test_a_creation_that_a_full_disk_undoes_leaves_no_row() -> None:
    node = NamingNode(wal_file_bytes=2048)
    node.one.append("other", 1)
    node.one.disk.fail("pwrite", error=28, forever=True)
    refused = [node.one.send_append("t", 1), node.one.send_put("u")]
    node.one.settle()
    assert {reply.code for reply in refused} == {"storage_full"}
    assert set(node.oracle.topics) == {"other", "t", "u"}
    node.one.disk.clear_faults()
    node.settle(1000 * HOLD_SECONDS + 1000)
    assert set(node.oracle.topics) == {"other"}


def test_topics_that_wait_for_the_catalog_count_against_the_limit() -> None:
    node = NamingNode(max_topics=2)
    node.one.append("a", 1)
    replies = [node.one.send_append(name, 1) for name in ("b", "c")]
    node.one.settle()
    assert [reply.code for reply in replies] == [None, "throttled"]


def test_a_repeat_of_the_write_that_creates_a_topic_is_applied_once() -> None:
    node = NamingNode()
    replies = [node.one.send_append("t", 1, idempotency_key="k") for _ in range(2)]
    node.one.settle()
    assert [reply.answer.deduped for reply in replies] == [False, True]
    assert node.one.append("t", 1, idempotency_key="k").first_seq == 1


# -- departed topics -----------------------------------------------------------------------------------------


def test_a_name_is_free_once_its_topic_was_deleted_on_another_node() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    node.seal()
    assert node.one.refused_append("t", 1).code == "topic_sealed"
    row = node.take_over()
    node.settle()
    assert node.one.refused_append("t", 1).detail == {"state": "moved", "node": B, "owner_epoch": 2}
    node.oracle.forget("t", row.ownership)
    node.settle()
    assert node.one.append("t", 1).created
    assert not node.one.shard.state.departed
    for end in (OneShard.kill, OneShard.cut_power, OneShard.restart):
        end(node.one)
        node.settle()
        assert not node.one.shard.state.departed
        assert node.one.seqs("t") == [1]
    assert node.row().owner == A


def test_a_read_of_a_departed_name_has_it_looked_up_for_the_next_one() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    node.seal()
    row = node.take_over()
    assert node.one.refused_read("t").code == "topic_sealed"
    node.one.settle()
    assert node.one.refused_read("t").code == "topic_moved"
    node.oracle.forget("t", row.ownership)
    node.settle()
    node.one.refused_read("t")
    node.one.settle()
    assert node.one.refused_read("t").code == "topic_not_found"


def test_a_departed_name_is_looked_up_once_a_second_at_most() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    node.take_over()
    node.one.restart()
    node.settle()
    before = node.catalog.calls["own"]
    for _ in range(100):
        node.one.refused_append("t", 1)
        node.one.refused_read("t")
    assert node.catalog.calls["own"] - before == 1
    node.settle(3_600_000)
    assert node.catalog.calls["own"] - before == 1


def test_what_is_known_of_a_departed_name_is_the_answer_while_the_catalog_is_away() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    node.take_over()
    node.one.restart()
    node.settle()
    node.catalog.is_away = True
    node.settle()
    assert node.one.refused_append("t", 1).code == "topic_moved"
    assert node.one.send_delete_topic("t").code == "topic_moved"


def test_files_that_a_departed_topic_left_are_kept_until_it_is_deleted_here() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    row = node.take_over()
    node.one.restart()
    node.settle()
    node.oracle.forget("t", row.ownership)
    node.settle()
    refusal = node.one.refused_append("t", 2)
    assert refusal.detail is not None
    assert refusal.detail["state"] == "forgotten"
    assert len(node.one.shard.state.topics_by_id) == 1
    assert node.one.delete_topic("t").deleted
    assert node.one.append("t", 3).first_seq == 1


def test_a_start_looks_all_departed_names_up() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    node.seal()
    row = node.take_over()
    node.one.checkpoint()
    node.one.kill()
    node.settle()
    assert node.one.shard.state.departed["t"].node == B
    node.oracle.forget("t", row.ownership)
    node.one.restart()
    node.settle()
    assert not node.one.shard.state.departed


def test_a_name_that_was_given_to_another_topic_says_where_that_is() -> None:
    node = NamingNode()
    node.one.append("t", 1)
    row = node.take_over()
    node.one.restart()
    node.settle()
    node.oracle.forget("t", row.ownership)
    node.oracle.create("t", row.topic_id, row.incarnation + 1, "node-c", 10)
    node.settle()
    assert node.one.refused_append("t", 1).detail == {"state": "moved", "node": "node-c", "owner_epoch": 1}


def test_requests_that_wait_are_refused_at_the_end() -> None:
    node = NamingNode()
    reply = node.one.send_append("t", 1)
    node.one.close()
    assert reply.code == "shutting_down"


def test_a_shard_without_a_catalog_creates_its_topics_at_once() -> None:
    one = OneShard()
    reply = one.send_append("t", 1)
    assert "t" in one.shard.state.topics
    one.settle()
    assert not isinstance(reply.answer, Refusal)


def test_a_row_of_this_node_that_was_adopted_is_not_taken_for_an_unused_one() -> None:
    node = NamingNode()
    node.oracle.create("t", 1, 77, A, 10)
    node.oracle.adopt("t", A, 77, 1, accept_loss=True)
    refusal = node.one.refused_append("t", 1)
    assert refusal.code == "topic_moved"
    assert "accept_loss" in refusal.message
    node.settle()
    assert node.row().ownership == Ownership(A, 77, 2)
