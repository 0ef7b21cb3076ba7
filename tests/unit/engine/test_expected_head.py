from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.requests import ProducerSeq


def test_an_append_may_say_what_head_it_expects() -> None:
    one = OneShard()
    assert one.append("t", 1, 2, expected_head=0).created
    assert one.append("t", 3, expected_head=2).first_seq == 3
    for wrong in (0, 2, 4, -1):
        refusal = one.refused_append("t", "x", "y", expected_head=wrong)
        assert (refusal.code, refusal.detail) == ("head_mismatch", {"field": "expected_head", "head_seq": 3})
    assert one.state("t").head_seq == 3


def test_a_mismatch_creates_no_topic() -> None:
    one = OneShard()
    assert one.refused_append("t", 1, expected_head=1).code == "head_mismatch"
    assert one.shard.topic_names() == []


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_of_those_that_expect_the_same_head_one_wins(durability: str) -> None:
    """What is on its way counts."""
    one = OneShard()
    one.put("t", durability=durability)
    replies = [one.send_append("t", number, expected_head=0) for number in range(5)]
    one.settle()
    assert [answer.code for answer in replies] == [None] + ["head_mismatch"] * 4
    assert [record.data for record in one.read("t").records] == [b"0"]


def test_deleted_and_evicted_records_count_as_they_did() -> None:
    one = OneShard()
    one.put("t", cap_records=1)
    one.append("t", 1, 2)
    one.delete("t", before_seq=10)
    assert one.refused_append("t", 3, expected_head=0).code == "head_mismatch"
    assert one.append("t", 3, expected_head=2).first_seq == 3


def test_a_repeat_gets_its_answer_though_the_head_has_moved() -> None:
    one = OneShard()
    one.append("t", 1, expected_head=0, idempotency_key="k")
    assert one.append("t", 1, expected_head=0, idempotency_key="k").deduped
    one.append("t", 2, expected_head=1, producer=ProducerSeq("p", 0))
    assert one.append("t", 2, expected_head=1, producer=ProducerSeq("p", 0)).deduped


def test_a_mismatch_leaves_the_key_and_the_number_free() -> None:
    one = OneShard()
    one.append("t", 1)
    assert one.refused_append("t", 2, expected_head=9, idempotency_key="k").code == "head_mismatch"
    assert one.refused_append("t", 2, expected_head=9, producer=ProducerSeq("p", 4)).code == "head_mismatch"
    assert not one.append("t", 2, idempotency_key="k").deduped
    assert not one.append("t", 2, producer=ProducerSeq("p", 9)).deduped
