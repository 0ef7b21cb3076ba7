"""Topics that another broker deleted and created again: their readers notice it within the time of a poll."""

from __future__ import annotations

import pytest

from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.read.reader import SharedRead, TopicRead
from topicsd.broker.write.batcher import BatchLimits


@pytest.mark.parametrize("count", [0, 2])
def test_a_topic_that_another_broker_made_again_with_the_same_head_ends_the_waits(count: int) -> None:
    one = OneBroker(BatchLimits(batch_seconds=0.01))
    one.create("a")
    for number in range(count):
        one.appended("a", b"%d" % number)
    other = OneBroker(other=one)
    assert len(other.values("a")) == count
    waiting = other.read(SharedRead([TopicRead("a", count + 1)], min_bytes=1, wait_seconds=50.0))
    other.advance(1_000)
    assert not waiting
    one.topics.forget("a", 7)
    one.create("a", 8)
    third = OneBroker(other=one)
    for number in range(count):
        third.appended("a", b"again %d" % number)
    other.advance(1_000)
    ((answer,),) = waiting
    refusal = answer.refusal
    assert refusal is not None
    assert refusal.code == "gone"
    assert other.values("a") == [(seq + 1, b"again %d" % seq) for seq in range(count)]
