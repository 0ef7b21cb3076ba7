"""What was said to be gone stays gone, and what was not asked to go stays."""

from tests.harness.shard.one_shard import OneShard


def test_delete_before_zero_deletes_nothing() -> None:
    shard = OneShard()
    shard.append("a", 1, 2, 3)
    assert shard.delete("a", before_seq=0).deleted == 0
    assert shard.delete("a", before_seq=1).deleted == 0
    assert shard.delete("a", before_seq=1 << 70).deleted == 3
    shard.kill()
    assert shard.state("a").count == 0


def test_delete_before_a_seq_of_the_future_spares_what_comes_later() -> None:
    shard = OneShard()
    shard.append("a", 1, 2)
    shard.delete("a", before_seq=100)
    shard.append("a", 3)
    assert shard.seqs("a") == [3]
    shard.restart()
    assert shard.seqs("a") == [3]


def test_a_floor_that_was_reported_holds_though_a_delete_overtook_it_in_the_log() -> None:
    shard = OneShard()
    shard.put("a", durable=True, ttl_ms=1000)
    shard.append("a", 1, 2, 3, 4, 5)
    shard.pass_time(1001)
    shard.loop.run_until_idle()
    shard.send_delete("a", before_seq=6)
    tombstone = shard.read("a").tombstone
    assert tombstone is not None
    assert (tombstone.gap_to, tombstone.reason) == (5, "ttl")
    shard.settle()
    shard.kill()
    assert shard.state("a").evict_floor == 6
    assert shard.read("a").tombstone == tombstone


def test_young_records_in_front_of_a_lost_range_do_not_expire_with_it() -> None:
    shard = OneShard()
    shard.put("a", ttl_ms=3_600_000)
    shard.append("a", 1, 2, 3)
    shard.pass_time(100)
    shard.cut_power()
    shard.append("a", "after")
    assert shard.seqs("a") == [1, 2, 3]
    assert shard.read("a").tombstone is None


def test_lowering_a_cap_evicts_nothing_from_a_topic_that_rejects() -> None:
    shard = OneShard()
    shard.put("a", cap_records=10, discard="reject")
    shard.append("a", 1, 2, 3, 4, 5)
    shard.put("a", cap_records=2)
    assert shard.seqs("a") == [1, 2, 3, 4, 5]
    shard.kill()
    assert shard.seqs("a") == [1, 2, 3, 4, 5]


def test_an_ephemeral_topic_forgets_its_keys_with_its_records() -> None:
    shard = OneShard()
    shard.put("a", durability="ephemeral")
    assert not shard.append("a", 1, idempotency_key="k").deduped
    assert shard.append("a", 1, idempotency_key="k").deduped
    shard.kill()
    again = shard.append("a", 1, idempotency_key="k")
    assert not again.deduped
    assert shard.seqs("a") == [again.first_seq]


def test_a_key_that_was_used_long_ago_is_not_remembered_by_a_restart() -> None:
    shard = OneShard()
    shard.append("a", 1, idempotency_key="k")
    shard.pass_time(200_000)
    shard.kill()
    assert shard.shard.state.idempotency_keys.count == 0
