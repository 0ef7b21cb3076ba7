from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.requests import AppendAnswer, ProducerSeq
from topicsd.engine.write.producers import KEPT_MS


def _by(seq: int, producer: str = "p") -> ProducerSeq:
    return ProducerSeq(producer, seq)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_repeat_gets_the_answer_of_the_first_and_an_older_one_is_a_duplicate(durability: str) -> None:
    one = OneShard()
    one.put("t", durability=durability)
    assert not one.append("t", "a", producer=_by(7)).deduped
    one.append("t", "b", "c", producer=_by(8))
    one.append("t", "between")
    assert one.append("t", "b", "c", producer=_by(8)) == AppendAnswer("t", 2, 3, 4, False, True, durability)
    assert one.append("t", "a", producer=_by(7)) == AppendAnswer("t", 0, 0, 4, False, True, durability)
    assert one.append("t", "d", producer=_by(9)).first_seq == 5


def test_a_jump_is_refused_and_changes_nothing() -> None:
    one = OneShard()
    one.append("t", 1, producer=_by(1))
    refusal = one.refused_append("t", 2, producer=_by(3))
    assert refusal.code == "producer_gap"
    assert refusal.detail == {"field": "producer.seq", "last_seq": 1, "next_seq": 2}
    assert one.state("t").head_seq == 1
    assert one.append("t", 2, producer=_by(2)).first_seq == 2


def test_producers_know_nothing_of_each_other_nor_of_other_topics() -> None:
    one = OneShard()
    one.append("t", 1, producer=_by(5))
    assert not one.append("t", 1, producer=_by(0, "q")).deduped
    assert not one.append("u", 1, producer=_by(90)).deduped
    one.delete_topic("t")
    assert not one.append("t", 1, producer=_by(2)).deduped


def test_what_is_on_its_way_counts_and_a_repeat_waits_for_its_outcome() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    first, second = (one.send_append("t", seq, producer=_by(seq)) for seq in (4, 5))
    repeats = [one.send_append("t", seq, producer=_by(seq)) for seq in (4, 5, 3)]
    gap = one.send_append("t", 7, producer=_by(7))
    assert gap.code == "producer_gap"
    assert not any(reply.has_answer for reply in (first, second, *repeats))
    one.settle()
    assert [reply.answer.first_seq for reply in (first, second, *repeats)] == [1, 2, 1, 2, 0]
    assert [reply.answer.deduped for reply in repeats] == [True] * 3
    assert one.state("t").head_seq == 2


def test_a_refused_write_gives_its_number_back_and_its_repeats_are_refused_with_it() -> None:
    one = OneShard(wal_file_bytes=4096)
    one.append("t", 1, producer=_by(1))
    one.disk.space_bytes = one.disk.used_bytes
    replies = [one.send_append("t", "x" * 6000, producer=_by(seq)) for seq in (2, 3, 2, 3)]
    one.settle()
    assert [answer.code for answer in replies] == ["storage_full"] * 4
    assert one.topic("t").pending_writes == {}
    one.disk.space_bytes = None
    one.pass_time(6000)
    assert one.refused_append("t", 3, producer=_by(3)).code == "producer_gap"
    assert not one.append("t", 2, producer=_by(2)).deduped


@pytest.mark.parametrize("end", ["restart", "kill", "reboot", "cut_power"])
@pytest.mark.parametrize("checkpoints", [0, 1, 2])
def test_it_outlives_every_end_and_any_time(end: str, checkpoints: int) -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.append("t", 1, producer=_by(1))
    one.append("t", 2, 3, producer=_by(2))
    for _ in range(checkpoints):
        one.checkpoint()
        one.append("t", 0)
    one.append("t", 4, producer=_by(3))
    one.clock.advance(30 * 24 * 3_600_000)
    getattr(one, end)()
    head = one.state("t").head_seq
    again = one.append("t", 4, producer=_by(3))
    assert (again.first_seq, again.last_seq, again.deduped) == (head, head, True)
    assert one.append("t", 2, 3, producer=_by(2)).deduped
    assert one.refused_append("t", 9, producer=_by(5)).code == "producer_gap"
    assert one.append("t", 5, producer=_by(4)).first_seq == head + 1


def test_deleting_or_evicting_the_records_does_not_forget_the_producer() -> None:
    one = OneShard()
    one.put("t", cap_records=1)
    one.append("t", 1, producer=_by(1))
    one.append("t", 2)
    one.delete("t", before_seq=100)
    one.checkpoint()
    one.kill()
    assert one.append("t", 1, producer=_by(1)).deduped


def test_more_producers_than_a_topic_may_know_are_throttled_and_a_silent_one_gives_way() -> None:
    one = OneShard(max_producers=2)
    one.append("t", 1, producer=_by(1, "a"))
    one.clock.advance(1)
    one.append("t", 1, producer=_by(1, "b"))
    refusal = one.refused_append("t", 1, producer=_by(1, "c"))
    assert (refusal.code, refusal.detail) == ("throttled", {"limit": "max_producers", "max": 2})
    one.clock.advance(KEPT_MS)
    assert not one.append("t", 1, producer=_by(1, "c")).deduped
    assert one.append("t", 1, producer=_by(1, "b")).deduped
    one.kill()
    assert one.append("t", 1, producer=_by(1, "c")).deduped
    assert one.append("t", 1, producer=_by(1, "b")).deduped
    assert one.refused_append("t", 1, producer=_by(1, "a")).code == "throttled"


def test_those_whose_first_write_is_on_its_way_take_room() -> None:
    one = OneShard(max_producers=2)
    replies = [one.send_append("t", 1, producer=_by(1, name)) for name in "abc"]
    one.settle()
    assert [answer.code for answer in replies] == [None, None, "throttled"]


@pytest.mark.parametrize(
    ("producer", "more", "field"),
    [
        (_by(1, ""), {}, "producer.id"),
        (_by(1, "x" * 257), {}, "producer.id"),
        (_by(-1), {}, "producer.seq"),
        (_by(1 << 63), {}, "producer.seq"),
        (_by(1), {"idempotency_key": "k"}, "producer"),
    ],
)
def test_what_is_wrong_is_named(producer: ProducerSeq, more: dict[str, str], field: str) -> None:
    refusal = OneShard().refused_append("t", 1, producer=producer, **more)
    assert (refusal.code, (refusal.detail or {})["field"]) == ("invalid_request", field)
