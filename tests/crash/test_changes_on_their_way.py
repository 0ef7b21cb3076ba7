"""A change of configuration is acked when what it says is on the disk, also when it says nothing new."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard


def test_a_change_back_to_what_was_is_not_acked_while_the_one_in_between_may_survive_it() -> None:
    one = OneShard()
    one.put("t", cap_records=0)
    there = one.send_put("t", cap_records=5)
    one.loop.run_until_idle()
    back = one.send_put("t", cap_records=0)
    same = one.send_put("t", ttl_ms=0)
    assert not same.has_answer, "the first of the three may be the only one that survives a power cut now"
    one.settle()
    assert there.has_answer
    assert back.has_answer
    assert same.answer.config.cap_records == 0
    one.cut_power(1)
    assert one.state("t").config.cap_records == 0


def test_a_change_that_says_nothing_new_is_answered_at_once_when_nothing_is_on_its_way() -> None:
    one = OneShard()
    one.put("t", cap_records=5)
    calls = one.disk.calls
    assert one.send_put("t", cap_records=5).has_answer
    assert one.disk.calls == calls
