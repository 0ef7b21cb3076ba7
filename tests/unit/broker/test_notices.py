"""Commits of other brokers are noticed at once, and a notice that is lost, late or wrong does no harm."""

from __future__ import annotations

import pytest

from tests.harness.brokers.one_broker import OneBroker
from topicsd.broker.read.heads import LISTEN_SECONDS
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.shared_catalog import HeadNotice

AT_ONCE = BatchLimits(batch_seconds=0.001, urgent_batch_seconds=0.001)


class TwoBrokers:
    """A broker that reads, and one that writes, whose commits nothing reports but the test."""

    def __init__(self) -> None:
        self.reader = OneBroker()
        self.writer = OneBroker(AT_ONCE, other=self.reader)
        self.topics = self.reader.topics

    def settle(self, ms: float = 5) -> None:
        for _ in range(3):
            self.reader.settle()
            self.writer.settle()
        self.reader.loop.advance(ms)
        for _ in range(3):
            self.reader.settle()
            self.writer.settle()

    def create(self, name: str, incarnation: int = 7) -> None:
        self.reader.create(name, incarnation)

    def wait(self, name: str, from_seq: int) -> list[list[TopicRecords]]:
        answers = self.reader.read(SharedRead([TopicRead(name, from_seq)], wait_seconds=20.0))
        self.settle()
        return answers

    def write(self, name: str) -> int:
        answers = self.writer.append(name, b'"a"')
        self.settle()
        (answer,) = answers
        return answer.last_seq  # type: ignore[union-attr]

    @property
    def polls(self) -> int:
        return self.reader.catalog.calls["heads"]


@pytest.fixture
def two() -> TwoBrokers:
    return TwoBrokers()


def test_a_notice_with_a_head_wakes_readers_without_a_request(two: TwoBrokers) -> None:
    two.create("t")
    answers = two.wait("t", 1)
    seq = two.write("t")
    requests = two.polls
    assert not answers
    two.topics.report(HeadNotice("t", 7, seq))
    two.settle()
    assert [record.seq for record in answers[0][0].records] == [1]
    assert two.polls == requests


@pytest.mark.parametrize("notice", [HeadNotice("t"), HeadNotice("t", head=1), HeadNotice("t", 8, 1)])
def test_a_notice_that_says_less_is_a_reason_to_ask(two: TwoBrokers, notice: HeadNotice) -> None:
    two.create("t")
    answers = two.wait("t", 1)
    two.write("t")
    requests = two.polls
    two.topics.report(notice)
    two.settle()
    assert [record.seq for record in answers[0][0].records] == [1]
    assert two.polls == requests + 1


def test_a_notice_of_an_earlier_topic_of_the_name_shows_no_head(two: TwoBrokers) -> None:
    two.create("t", 7)
    two.wait("t", 1)
    two.topics.forget("t", 7)
    two.create("t", 8)
    two.reader.broker.heads.forget("t")
    two.settle()
    two.wait("t", 1)
    two.topics.report(HeadNotice("t", 7, 99), HeadNotice("t", head=99))
    two.settle()
    assert two.reader.broker.heads.head("t", 8) == 0


def test_a_doubled_or_late_notice_changes_nothing(two: TwoBrokers) -> None:
    two.create("t")
    two.wait("t", 1)
    two.write("t")
    two.write("t")
    two.topics.report(HeadNotice("t", 7, 2), HeadNotice("t", 7, 2), HeadNotice("t", 7, 1))
    two.settle()
    assert two.reader.broker.heads.head("t", 7) == 2


def test_a_notice_without_news_is_no_request(two: TwoBrokers) -> None:
    two.create("t")
    two.write("t")
    two.topics.report(HeadNotice("t", 7, 1))
    two.wait("t", 2)
    requests = two.polls
    two.topics.report(HeadNotice("t", head=1), HeadNotice("other"), HeadNotice("t", 7, 1))
    two.settle()
    assert two.polls == requests


def test_a_lost_notice_costs_the_time_of_a_poll(two: TwoBrokers) -> None:
    two.create("t")
    answers = two.wait("t", 1)
    two.write("t")
    two.reader.advance(300)
    two.settle()
    assert [record.seq for record in answers[0][0].records] == [1]


def test_a_broker_listens_only_while_readers_wait(two: TwoBrokers) -> None:
    two.create("t")
    two.write("t")
    assert two.topics.listeners == []
    answers = two.wait("t", 2)
    (listener,) = two.topics.listeners
    assert listener.names == {"t"}
    two.write("t")
    two.topics.report(HeadNotice("t", 7, 2))
    two.settle()
    assert answers
    # Another reader usually comes at once: the topic is followed for two more polls.
    two.reader.advance(200)
    assert listener.names == {"t"}
    two.reader.advance(600)
    assert listener.names == set()
    assert two.topics.listeners == [listener]
    two.reader.advance(LISTEN_SECONDS * 1000 + 300)
    assert two.topics.listeners == []
    two.wait("t", 3)
    assert two.topics.listeners[0].names == {"t"}


def test_readers_that_begin_together_are_one_change_of_what_is_followed(two: TwoBrokers) -> None:
    names = [f"t{number}" for number in range(50)]
    for name in names:
        two.create(name)
    for name in names:
        two.reader.read(SharedRead([TopicRead(name, 1)], wait_seconds=20.0))
    two.settle()
    (listener,) = two.topics.listeners
    assert listener.names == set(names)
    assert listener.changes <= 2


def test_nothing_is_reported_to_a_broker_that_has_ended(two: TwoBrokers) -> None:
    two.create("t")
    two.wait("t", 1)
    (listener,) = two.topics.listeners
    two.reader.broker.heads.close()
    assert two.topics.listeners == []
    listener.on_notices([HeadNotice("t", 7, 5)])
    two.settle()
    assert two.reader.broker.heads.notices == 0
