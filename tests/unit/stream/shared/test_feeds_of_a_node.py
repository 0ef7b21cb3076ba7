"""Followers on any process of a node find a topic where it is: on its shard, or at the broker."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from shared.contract.errors import Refusal
from shared.contract.seek import Seek
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import Placement
from shared.ipc.remote_request import decode_answer
from shared.ipc.watch_request import WatchRequest, encode_watch_request
from tests.harness.stage.broker_stage import BROKER, BrokerStage
from tests.harness.stage.feed_shards import Collector, FakeStream, feed_spec, reader_options
from topicsd.service.shards.topic_heads import HeadAnswer, TopicHead
from topicsd.stream.chunks import FeedSpec
from topicsd.stream.feed import Feed
from topicsd.stream.feeds import Feeds
from topicsd.stream.remote_feed import RemoteFeed
from topicsd.stream.shared.shared_feed import SharedFeed
from topicsd.stream.sse_stream import SseStream

EPOCH = 1 << 50

ANYWHERE = pytest.mark.parametrize(
    ("process", "topic"),
    [(0, "t0"), (0, "c1"), (BROKER, "t0")],
    ids=["its shard by the placement", "another shard", "broker"],
)


def feed_at(stage: BrokerStage, process: int, topic: str) -> Feed:
    return stage.workers[process].streams.feeds.feed(feed_spec(topic))


@ANYWHERE
def test_a_shared_topic_is_followed_from_any_process(process: int, topic: str) -> None:
    stage = BrokerStage()
    stage.create_shared(topic)
    stage.append_shared(topic, b"1", b"2")
    collector = Collector(feed_at(stage, process, topic))
    stage.settle()
    assert collector.seqs == [1, 2]
    stage.append_shared(topic, b"3")
    assert collector.seqs == [1, 2, 3]
    stage.append_shared(topic, b"4", at=stage.other)
    stage.pass_time(300)
    assert collector.seqs == [1, 2, 3, 4]
    assert (collector.refusals, collector.has_ended) == ([], False)


@pytest.mark.parametrize("topic", ["t0", "c1"])
def test_followers_of_a_broker_that_is_gone_move_to_another_one(topic: str) -> None:
    stage = BrokerStage(brokers=2)
    stage.create_shared(topic)
    stage.append_shared(topic, b"1")
    collector = Collector(feed_at(stage, 0, topic))
    stage.settle()
    stage.links[BROKER].lose()
    stage.cut_off(BROKER)
    stage.append_shared(topic, b"2", at=stage.brokers[BROKER + 1])
    stage.pass_time(300)
    assert collector.seqs == [1, 2]
    late = Collector(feed_at(stage, 1, topic))
    stage.append_shared(topic, b"3", at=stage.brokers[BROKER + 1])
    stage.pass_time(300)
    assert (collector.seqs, late.seqs) == ([1, 2, 3], [1, 2, 3])
    stage.reconnect()
    stage.append_shared(topic, b"4")
    stage.pass_time(600)
    assert (collector.seqs, late.seqs) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert (collector.has_ended, late.has_ended) == (False, False)


def test_positions_of_a_broker_that_is_gone_are_those_of_another_one() -> None:
    stage = BrokerStage(brokers=2)
    stage.create_shared("t0")
    stage.append_shared("t0", b"1", b"2")
    stage.cut_off(BROKER)
    head = heads_at(stage, 0, t0=0)["t0"]
    assert isinstance(head, TopicHead)
    assert head.head_seq == 2


@ANYWHERE
def test_a_local_topic_is_followed_from_any_process(process: int, topic: str) -> None:
    stage = BrokerStage()
    stage.owner(topic).append(topic, 1, 2)
    collector = Collector(feed_at(stage, process, topic))
    stage.settle()
    stage.owner(topic).append(topic, 3)
    stage.settle()
    assert collector.seqs == [1, 2, 3]
    stage.owner(topic).delete_topic(topic)
    stage.settle()
    assert (collector.refusals, collector.has_ended) == ([], True)


@ANYWHERE
def test_followers_end_with_a_shared_topic(process: int, topic: str) -> None:
    stage = BrokerStage()
    stage.create_shared(topic)
    stage.append_shared(topic, b"1")
    collector = Collector(feed_at(stage, process, topic))
    stage.settle()
    stage.delete_shared(topic)
    stage.settle()
    assert (collector.seqs, collector.has_ended) == ([1], True)


@ANYWHERE
def test_followers_notice_a_topic_that_another_broker_made_again_with_the_same_head(
    process: int, topic: str
) -> None:
    stage = BrokerStage()
    stage.create_shared(topic)
    stage.append_shared(topic, b"1")
    collector = Collector(feed_at(stage, process, topic))
    stage.settle()
    stage.topics.forget(topic, EPOCH)
    stage.create_shared(topic, EPOCH + 1)
    stage.append_shared(topic, b"2", at=stage.other)
    stage.pass_time(600)
    assert (collector.seqs, collector.has_ended) == ([1, 1], False)


@ANYWHERE
def test_a_local_topic_with_a_name_that_was_shared_ends_the_followers(process: int, topic: str) -> None:
    stage = BrokerStage()
    stage.create_shared(topic)
    stage.append_shared(topic, b"1")
    collector = Collector(feed_at(stage, process, topic))
    stage.settle()
    stage.delete_shared(topic)
    stage.owner(topic).append(topic, "local")
    calls = sum(links.call_count for links in stage.links)
    stage.settle()
    assert collector.has_ended
    assert sum(links.call_count for links in stage.links) - calls < 10
    again = Collector(feed_at(stage, process, topic))
    stage.settle()
    assert (again.seqs, again.has_ended) == ([1], False)


@ANYWHERE
def test_a_name_without_a_topic_ends_a_follower_at_once(process: int, topic: str) -> None:
    stage = BrokerStage()
    collector = Collector(feed_at(stage, process, topic))
    stage.settle()
    assert (collector.refusals, collector.has_ended) == ([], True)


def test_followers_of_one_process_are_one_pull_from_the_broker_and_no_other_shard() -> None:
    stage = BrokerStage()
    stage.create_shared("c1")
    stage.append_shared("c1", b"1")
    collectors = [Collector(feed_at(stage, 0, "c1")) for _ in range(50)]
    stage.settle()
    calls = stage.links[0].call_count
    stage.append_shared("c1", b"2")
    assert all(collector.seqs == [1, 2] for collector in collectors)
    assert stage.links[0].call_count - calls == 1
    assert stage.links[1].call_count == 0


def test_a_broker_that_is_away_interrupts_followers_which_then_resume() -> None:
    stage = BrokerStage()
    stage.create_shared("t0")
    stage.append_shared("t0", b"1")
    collector = Collector(feed_at(stage, 0, "t0"))
    stage.settle()
    stage.cut_off(BROKER)
    stage.pass_time(1_000)
    assert [refusal.code for refusal in collector.refusals] == ["not_ready"]
    stage.append_shared("t0", b"2")
    stage.reconnect()
    stage.pass_time(1_000)
    assert (collector.seqs, len(collector.refusals)) == ([1, 2], 1)


def heads_at(stage: BrokerStage, process: int, **positions: Any) -> dict[str, HeadAnswer]:
    outcomes: list[Any] = []
    state = stage.shards[process].shard.state
    state.jobs.start_now(stage.workers[process].streams.topic_heads.find(positions), outcomes.append)
    stage.settle()
    assert isinstance(outcomes[0], dict), outcomes
    return outcomes[0]


@pytest.mark.parametrize("process", [0, 1, BROKER])
def test_heads_of_shared_and_local_topics_are_found_together(process: int) -> None:
    stage = BrokerStage()
    for name in ("t0", "c1"):
        stage.owner(name).append(name, 1)
    for name in ("shared", "other"):
        stage.create_shared(name)
        stage.append_shared(name, b"1", b"2", b"3", at=stage.other)
    heads = heads_at(
        stage, process, t0=0, c1=Seek(last=1), shared=None, other=Seek(last=2), seek=Seek(from_ts=0), none=0
    )
    assert heads["t0"] == TopicHead(1, 1, stage.owner("t0").topic("t0").epoch)
    assert heads["c1"] == TopicHead(1, 1, stage.owner("c1").topic("c1").epoch, 0)
    assert heads["shared"] == TopicHead(3, 1, EPOCH)
    assert heads["other"] == TopicHead(3, 1, EPOCH, 1)
    for name in ("seek", "none"):
        answer = heads[name]
        assert isinstance(answer, Refusal)
        assert answer.code == "topic_not_found"


@pytest.mark.parametrize("process", [0, BROKER])
def test_a_catalog_that_is_away_is_no_missing_topic(process: int) -> None:
    stage = BrokerStage()
    stage.create_shared("t0")
    stage.catalog.faults["topics"] = deque(["lost request"])
    answer = heads_at(stage, process, t0=0)["t0"]
    assert isinstance(answer, Refusal)
    assert answer.code == "catalog_unavailable"
    assert isinstance(heads_at(stage, process, t0=0)["t0"], TopicHead)


@pytest.mark.parametrize("process", [0, BROKER])
def test_a_watch_session_has_the_positions_of_shared_and_local_topics(process: int) -> None:
    stage = BrokerStage()
    stage.owner("c1").append("c1", 1, 2)
    stage.create_shared("shared")
    stage.append_shared("shared", b"1", b"2", b"3", at=stage.other)
    answer = create_session(stage, process, {"c1": None, "shared": Seek(last=1)})
    assert answer["topics"] == {
        "c1": {"from_seq": 2, "head_seq": 2, "earliest_seq": 1, "epoch": stage.owner("c1").topic("c1").epoch},
        "shared": {"from_seq": 2, "head_seq": 3, "earliest_seq": 1, "epoch": EPOCH},
    }
    assert create_session(stage, process, {"none": 0})["error"]["code"] == "topic_not_found"


def create_session(stage: BrokerStage, process: int, positions: dict[str, Any]) -> Any:
    request = WatchRequest(
        names=list(positions),
        positions=list(positions.values()),
        epochs=[None] * len(positions),
        key_id="",
        options=reader_options(),
        heartbeat_ms=15_000,
        is_lenient=False,
        clamped={},
    )
    answers: list[bytes] = []
    links = stage.links[1 - min(process, 1)]
    links.call(str(process), LinkKind.CREATE_SESSION, encode_watch_request(request), answers.append)
    stage.settle()
    _, _, body = decode_answer(answers[0])
    return msgspec.json.decode(body)


class Topics:
    """The topics and positions of a watch session that begins at the heads."""

    heartbeat_ms = 60_000

    def __init__(self, heads: dict[str, HeadAnswer]) -> None:
        self.names = list(heads)
        self.seqs, self.epochs = [], []
        for one in heads.values():
            assert isinstance(one, TopicHead)
            self.seqs.append(one.head_seq)
            self.epochs.append(one.epoch)
        self.first_epochs = list(self.epochs)


@pytest.mark.parametrize("process", [0, BROKER])
def test_a_stream_mixes_shared_and_local_topics(process: int) -> None:
    stage = BrokerStage()
    stage.owner("t0").append("t0", 1)
    stage.create_shared("shared")
    stage.append_shared("shared", b"1")
    names: dict[str, Any] = {"t0": None, "shared": None}
    topics = Topics(heads_at(stage, process, **names))
    one = stage.shards[process]
    stream = FakeStream()
    feeds = stage.workers[process].streams.feeds
    sse = SseStream(
        stream, feeds, one.loop, stage.clock, topics, reader_options(), stream.on_end, stream.on_lag
    )
    sse.begin()
    stage.settle()
    stage.owner("t0").append("t0", 2)
    stage.append_shared("shared", b"2", at=stage.other)
    stage.pass_time(500)
    events = stream.take()
    records = [(one.data["topic"], one.data["to_seq"]) for one in events if one.name == "record"]
    assert sorted(records) == [("shared", 2), ("t0", 2)]
    assert topics.seqs == [2, 2]
    stage.delete_shared("shared")
    stage.pass_time(500)
    stage.owner("t0").append("t0", 3)
    stage.pass_time(500)
    names_of_events = [(event.name, event.data["topic"]) for event in stream.take()]
    assert names_of_events[:2] == [("topic-deleted", "shared"), ("record", "t0")]


def test_a_feed_of_a_node_without_shards_is_that_of_the_broker() -> None:
    stage = BrokerStage()
    worker = stage.workers[BROKER].streams

    class Nowhere(Placement):
        def owner_of(self, name: str) -> int:
            return -1

    one = stage.shards[BROKER]
    shared = worker.feeds.shared
    feeds = Feeds(one.shard.state, one.loop, BROKER, Nowhere(1), None, broker_number=BROKER, shared=shared)
    assert isinstance(feeds.feed(FeedSpec("none", reader_options())), SharedFeed)
    assert isinstance(worker.feeds.feed(FeedSpec("none", reader_options())), RemoteFeed)
