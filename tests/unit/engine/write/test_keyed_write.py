from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, record

WINDOW = 120_000


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_write_that_is_sent_again_gets_the_answer_of_the_first(durability: str) -> None:
    one = OneShard()
    one.put("t", durability=durability)
    first = one.append("t", "a", "b", idempotency_key="k")
    one.append("t", "between")
    again = one.append("t", "a", "b", idempotency_key="k")
    assert (first.first_seq, first.last_seq, first.deduped) == (1, 2, False)
    assert (again.first_seq, again.last_seq, again.deduped, again.created) == (1, 2, True, False)
    assert (again.head_seq, again.durability) == (3, durability)
    assert one.seqs("t") == [1, 2, 3]


def test_the_write_that_created_the_topic_is_known_by_its_key_too() -> None:
    one = OneShard()
    assert one.append("t", 1, idempotency_key="k").created
    again = one.append("t", 1, idempotency_key="k")
    assert (again.first_seq, again.created, again.deduped) == (1, False, True)
    one.kill()
    assert one.append("t", 1, idempotency_key="k").deduped
    assert one.seqs("t") == [1]


def test_the_window_ends_exactly_when_it_is_over() -> None:
    one = OneShard()
    one.put("t", idempotency_window_ms=1000)
    one.append("t", 1, idempotency_key="k")
    one.clock.advance(1000)
    assert one.append("t", 1, idempotency_key="k").deduped
    one.clock.advance(1)
    again = one.append("t", 1, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_the_window_counts_from_the_first_use() -> None:
    one = OneShard()
    one.put("t", idempotency_window_ms=1000)
    one.append("t", 1, idempotency_key="k")
    for _ in range(5):
        one.clock.advance(200)
        assert one.append("t", 1, idempotency_key="k").deduped
    one.clock.advance(1)
    assert not one.append("t", 1, idempotency_key="k").deduped


def test_a_window_of_zero_knows_no_keys() -> None:
    one = OneShard()
    one.put("t", idempotency_window_ms=0)
    assert [one.append("t", 1, idempotency_key="k").first_seq for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    "other",
    [
        [record(1), record(3)],
        [record(1)],
        [record(1), record(2), record(2)],
        [record(2), record(1)],
        [record(b"1 "), record(2)],
        [record(1, tag="x"), record(2)],
        [record(1, tag=""), record(2)],
        [record(1, node="x"), record(2)],
        [record(1, meta={}), record(2)],
    ],
)
def test_the_same_key_with_other_records_is_a_mismatch(other: list[object]) -> None:
    one = OneShard()
    one.append("t", 1, 2, idempotency_key="k")
    refusal = one.refused_append("t", *other, idempotency_key="k")
    assert (refusal.code, refusal.detail) == ("idempotency_mismatch", {"field": "idempotency_key"})
    assert one.state("t").head_seq == 2
    assert one.append("t", 1, 2, idempotency_key="k").deduped


def test_what_is_not_of_the_records_makes_no_other_write() -> None:
    one = OneShard()
    one.append("t", record(1, node="n"), idempotency_key="k")
    assert one.append("t", record(1), node="n", create=False, idempotency_key="k").deduped


def test_a_repeat_while_the_first_is_on_its_way_waits_for_its_outcome() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    first = one.send_append("t", 1, idempotency_key="k")
    one.loop.run_until_idle()
    repeats = [one.send_append("t", 1, idempotency_key="k") for _ in range(3)]
    other = one.send_append("t", 2, idempotency_key="k")
    assert other.code == "idempotency_mismatch"
    assert [reply.has_answer for reply in (first, *repeats)] == [False] * 4
    one.settle()
    assert (first.answer.first_seq, first.answer.deduped) == (1, False)
    for reply in repeats:
        assert (reply.answer.first_seq, reply.answer.last_seq, reply.answer.deduped) == (1, 1, True)
        assert reply.answer.created is False
    assert one.state("t").head_seq == 1


def test_a_refused_write_gives_its_key_back_and_its_repeats_are_refused_with_it() -> None:
    one = OneShard(wal_file_bytes=4096)
    one.append("t", 1)
    one.disk.space_bytes = one.disk.used_bytes
    large = b'"' + b"x" * 6000 + b'"'
    replies = [one.send_append("t", record(large), idempotency_key="k") for _ in range(3)]
    one.settle()
    assert [answer.code for answer in replies] == ["storage_full"] * 3
    one.disk.space_bytes = None
    one.pass_time(6000)
    assert one.append("t", 2, idempotency_key="k").deduped is False
    assert one.append("t", 2, idempotency_key="k").deduped is True


def test_the_key_of_a_write_in_doubt_gives_its_outcome_after_the_restart() -> None:
    one = OneShard()
    one.put("t", durability="fsync")
    one.disk.fail("sync_data")
    reply = one.send_append("t", 1, idempotency_key="k")
    one.settle()
    assert reply.code == "storage_failed"
    one.disk.clear_faults()
    one.kill()
    before = one.seqs("t")
    again = one.append("t", 1, idempotency_key="k")
    assert again.deduped is (before == [1])
    assert one.seqs("t", again.first_seq - 1) == [again.first_seq]


@pytest.mark.parametrize("end", ["restart", "kill", "reboot"])
def test_a_key_survives_a_restart_as_its_records_do(end: str) -> None:
    one = OneShard()
    one.put("t", durability="fsync", idempotency_window_ms=1000)
    one.append("t", 1, 2, idempotency_key="k")
    one.clock.advance(500)
    getattr(one, end)()
    again = one.append("t", 1, 2, idempotency_key="k")
    assert (again.first_seq, again.last_seq, again.deduped) == (1, 2, True)
    assert one.refused_append("t", 9, idempotency_key="k").code == "idempotency_mismatch"
    one.clock.advance(501)
    assert not one.append("t", 1, 2, idempotency_key="k").deduped


def test_what_forgets_its_records_forgets_their_keys() -> None:
    one = OneShard()
    one.put("t", durability="ephemeral")
    one.append("t", 1, idempotency_key="k")
    one.restart()
    again = one.append("t", 1, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_deleting_the_records_does_not_shorten_the_window() -> None:
    one = OneShard()
    one.append("t", 1, idempotency_key="k")
    one.delete("t", before_seq=100)
    again = one.append("t", 1, idempotency_key="k")
    assert (again.deduped, again.first_seq, one.state("t").count) == (True, 1, 0)


def test_a_key_belongs_to_its_topic_and_to_one_incarnation_of_it() -> None:
    one = OneShard()
    one.append("a", 1, idempotency_key="k")
    assert not one.append("b", 1, idempotency_key="k").deduped
    one.delete_topic("a")
    again = one.append("a", 1, idempotency_key="k")
    assert (again.deduped, again.created, again.first_seq) == (False, True, 1)
    assert one.append("a", 1, idempotency_key="k").deduped


def test_a_window_that_is_made_longer_counts_for_keys_from_before() -> None:
    one = OneShard()
    one.put("t", idempotency_window_ms=5000)
    one.append("t", 1, idempotency_key="k")
    one.put("t", idempotency_window_ms=10_000)
    one.clock.advance(4000)
    assert one.append("t", 1, idempotency_key="k").deduped
    one.kill()
    assert one.append("t", 1, idempotency_key="k").deduped


def test_more_keys_than_the_shard_may_remember_are_throttled_and_never_forgotten_early() -> None:
    one = OneShard(max_idempotency_keys=3)
    one.put("t", idempotency_window_ms=10_000)
    for number in range(3):
        one.append("t", number, idempotency_key=f"k{number}")
    refusal = one.refused_append("t", 3, idempotency_key="k3")
    assert (refusal.code, refusal.detail) == ("throttled", {"limit": "max_idempotency_keys", "max": 3})
    assert refusal.retry_after_ms is not None
    assert one.append("t", 0, idempotency_key="k0").deduped
    assert one.append("t", 4).first_seq == 4
    one.clock.advance(11_001)
    assert not one.append("t", 3, idempotency_key="k3").deduped


def test_keys_on_their_way_count_for_the_bound() -> None:
    one = OneShard(max_idempotency_keys=2)
    one.put("t", durability="fsync")
    replies = [one.send_append("t", number, idempotency_key=f"k{number}") for number in range(3)]
    one.settle()
    assert [answer.code for answer in replies] == [None, None, "throttled"]


def test_a_keyed_write_is_one_with_its_records_whatever_is_lost() -> None:
    one = OneShard()
    one.append("t", 0)
    one.pass_time(100)
    one.append("t", 1, 2, idempotency_key="k")
    for seed in range(30):
        other = OneShard(clock=one.clock)
        other.disk = one.disk
        other.cut_power(seed)
        survived = 3 in other.seqs("t", 1)
        again = other.append("t", 1, 2, idempotency_key="k")
        assert again.deduped is survived, f"seed {seed}"
