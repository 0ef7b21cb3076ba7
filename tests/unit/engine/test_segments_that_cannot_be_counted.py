"""A segment with missing files is reported as damaged to its readers, and blocks no other request."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.shard.shard_driver import PATHS
from topicsd.engine.read.read import read
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import ReadRequest
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS


def with_lost_segment(**config: object) -> OneShard:
    """Of ten records the first five are in a segment that is not there any more."""
    one = OneShard(segment_max_events=5)
    one.put("t", **config)
    one.append("t", *range(5))
    one.append("t", *range(5))
    one.checkpoint()
    run = one.topic("t").runs[0]
    assert isinstance(run, SealedRun)
    for suffix in (".data", ".idx"):
        one.disk.unlink(f"{PATHS.root}/{run.name.key(suffix)}")
    one.shard.state.segments.forget(run.name)
    return one


def test_a_read_is_refused_when_the_index_is_missing_too() -> None:
    one = with_lost_segment()
    reply = RecordedReply()
    read(one.shard.state, "t", ReadRequest(from_seq=0), reply)
    one.settle()
    assert reply.code == "corrupt_segment"
    assert reply.answer.detail["next_from_seq"] == 5
    assert one.seqs("t", 5) == [6, 7, 8, 9, 10]


def test_a_cap_that_ends_in_it_holds_up_no_write() -> None:
    one = with_lost_segment(cap_records=10)
    replies = [one.send_append("t", 1, 2), one.send_append("other", 1)]
    one.settle()
    assert [one.code for one in replies] == [None, None]
    assert one.state("t").count == 12
    one.append("t", *range(3))
    assert one.state("t").count == 10, "what is whole in it goes without being counted"


def test_a_delete_that_ends_in_it_is_answered_and_takes_nothing_out() -> None:
    one = with_lost_segment()
    replies = [one.send_delete("t", before_seq=3), one.send_append("other", 1)]
    one.settle()
    assert [one.code for one in replies] == ["corrupt_segment", None]
    assert (one.state("t").earliest_seq, one.state("t").count) == (1, 10)


def test_a_truncation_within_it_is_refused_and_one_of_all_of_it_needs_no_index() -> None:
    one = with_lost_segment()
    refused = one.send_delete("t", after_seq=3)
    one.settle()
    assert (refused.code, one.state("t").count) == ("corrupt_segment", 10)
    assert one.delete("t", after_seq=5).deleted == 5
    assert one.delete("t", after_seq=0).deleted == 5
    assert one.state("t").earliest_seq == 11


def test_upkeep_continues_with_the_other_topics(caplog: pytest.LogCaptureFixture) -> None:
    one = with_lost_segment(ttl_ms=1000)
    one.topic("t").runs[0]._front = (1, 0)  # type: ignore[attr-defined]
    one.put("other", ttl_ms=1000)
    one.append("other", 1)
    one.shard.upkeep.wake()
    one.clock.advance_ns(500_000_000)
    one.pass_time(ROUND_SECONDS * 1000 + 1)
    assert one.topic("other").live_count == 0
    assert "upkeep: round failed" not in caplog.text


def test_age_goes_by_what_is_alive_of_a_rewritten_segment() -> None:
    one = OneShard(segment_max_events=10)
    one.put("t", ttl_ms=100_000)
    for number in range(10):
        one.append("t", record("x" * 100, tag="live" if number < 3 else "dead"))
        one.pass_time(1000)
    one.append("t", 1)
    one.checkpoint()
    one.delete("t", tag="dead")
    one.checkpoint()
    one.shard.upkeep.start_round()
    one.settle()
    run = one.topic("t").runs[0]
    assert isinstance(run, SealedRun)
    assert run.entry.generation == 1
    one.pass_time(run.times_ms[-1] + 102_000 - one.clock.now_ms())
    assert one.seqs("t") == [11]


def test_a_start_over_it_leaves_the_topic_over_its_caps_as_the_run_before_did() -> None:
    one = with_lost_segment(cap_records=10)
    one.append("t", 1, 2)
    one.kill()
    assert one.state("t").count == 12
    one.append("t", *range(3))
    assert one.state("t").count == 10
