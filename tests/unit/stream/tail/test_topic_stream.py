"""Streams without a session: topics that exist, topics that are created later, and the position in all."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.api_keys import READ, ApiKey
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.stage.feed_shards import FeedShards
from tests.harness.stage.topic_streams import LINES, TopicStreamClient, names_of, records_of
from topicsd.stream.event_stream import PAUSED_SECONDS_MAX
from topicsd.stream.tail.stream_id import read_stream_id, stream_id


def open_stream(stage: FeedShards, topic: str = "", **query: Any) -> TopicStreamClient:
    client = TopicStreamClient(stage.workers[0], topic, **query)
    stage.settle()
    return client


def append(stage: FeedShards, topic: str, *data: object, tag: str | None = None) -> None:
    stage.owner(topic).append(topic, *(record(one, tag) for one in data))


@pytest.fixture(name="stage")
def _stage() -> FeedShards:
    return FeedShards()


def both(stage: FeedShards, prefix: str) -> list[str]:
    """Return a name with this prefix for each shard."""
    return [
        next(name for at in range(100) if stage.number_of(name := f"{prefix}{at}") == number)
        for number in (0, 1)
    ]


@pytest.mark.parametrize("accept", ["", LINES])
def test_a_topic_is_followed_from_its_first_record(stage: FeedShards, accept: str) -> None:
    for topic in both(stage, "t"):
        append(stage, topic, "a", "b")
        client = open_stream(stage, topic, accept=accept)
        append(stage, topic, "c")
        stage.settle()
        events = client.read()
        assert [seq for _, seq in records_of(events)] == [1, 2, 3]
        assert names_of(events)[: names_of(events).index("caught-up")].count("record") >= 1


def test_the_forms_are_chosen_by_accept(stage: FeedShards) -> None:
    for accept, kind in [
        ("", "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/event-stream, application/x-ndjson;q=0.5", "text/event-stream"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson, */*;q=0.1", "application/x-ndjson"),
    ]:
        assert f"content-type: {kind}\r\n".encode() in open_stream(stage, "t", accept=accept).head
    assert open_stream(stage, "t", accept="application/json").refusal[0] == 406


def test_a_topic_that_does_not_exist_is_waited_for(stage: FeedShards) -> None:
    for topic in both(stage, "future"):
        client = open_stream(stage, topic)
        (waiting,) = client.read()
        assert (waiting.name, waiting.data) == ("waiting", {"topics": [topic]})
        append(stage, topic, "first", "second")
        # No time passes.
        stage.settle()
        assert records_of(client.read()) == [(topic, 1), (topic, 2)]


def test_patterns_match_topics_of_all_shards_that_are_created_later(stage: FeedShards) -> None:
    old, new, others = both(stage, "orders.old"), both(stage, "orders.new"), both(stage, "clicks")
    for topic in old:
        append(stage, topic, 1)
    client = open_stream(stage, topics=f"orders.*,{others[1]}")
    for topic in (*others, *new):
        append(stage, topic, 1, 2)
    stage.settle()
    expected = [(topic, 1) for topic in old]
    expected += [(topic, seq) for topic in (others[1], *new) for seq in (1, 2)]
    assert sorted(records_of(client.read())) == sorted(expected)


@pytest.mark.parametrize("query", [{"tail": "true"}, {"last": "0"}, {"since": "1s"}])
def test_a_position_is_for_the_topics_that_exist(stage: FeedShards, query: dict[str, str]) -> None:
    old, new = both(stage, "a.old"), both(stage, "a.new")
    for topic in old:
        append(stage, topic, 1, 2)
    stage.pass_time(10_000)
    client = open_stream(stage, topics="a.*", **query)
    for topic in (*old, *new):
        append(stage, topic, 3)
    stage.settle()
    assert sorted(records_of(client.read())) == sorted(
        [(topic, 3) for topic in old] + [(topic, 1) for topic in new]
    )


def test_a_pattern_finds_nothing_outside_the_prefixes_of_the_key(stage: FeedShards) -> None:
    key = ApiKey("k", frozenset({READ}), ("a.x",))
    covered, outside = both(stage, "a.x"), both(stage, "a.y")
    client = open_stream(stage, topics="a.*", key=key)
    for topic in (*outside, *covered):
        append(stage, topic, 1)
    stage.settle()
    events = client.read()
    assert sorted(records_of(events)) == [(topic, 1) for topic in sorted(covered)]
    assert not any(topic in str(events) for topic in outside)
    for topics in (outside[0], "b*", "a.y*,a.x1"):
        status, error = open_stream(stage, topics=topics, key=key).refusal
        assert (status, error["code"]) == (403, "forbidden")


@pytest.mark.parametrize("accept", ["", LINES])
def test_a_limit_ends_the_stream_after_that_record(stage: FeedShards, accept: str) -> None:
    for topic in both(stage, "t"):
        append(stage, topic, *range(10))
        client = open_stream(stage, topic, accept=accept, limit=7, max_batch_bytes=100)
        events = client.read()
        assert [seq for _, seq in records_of(events)] == list(range(1, 8))
        assert (events[-1].name, events[-1].data) == ("end", {"reason": "limit"})
        assert client.stream.is_closed
        rest = open_stream(stage, topic, accept=accept, last_id=events[-1].id).read()
        assert [seq for _, seq in records_of(rest)] == [8, 9, 10]


def test_a_limit_counts_the_records_of_all_topics(stage: FeedShards) -> None:
    topics = both(stage, "t")
    for topic in topics:
        append(stage, topic, *range(5))
    client = open_stream(stage, topics=",".join(topics), limit=7)
    received = records_of(client.read())
    assert len(received) == 7
    assert client.stream.is_closed


def test_a_client_resumes_in_all_topics_with_those_created_meanwhile(stage: FeedShards) -> None:
    old, new = both(stage, "a.old"), both(stage, "a.new")
    for topic in old:
        append(stage, topic, 1, 2)
    client = open_stream(stage, topics="a.*", tail="true")
    last_id = client.read()[-1].id
    client.stream.on_lost()
    for topic in (*old, *new):
        append(stage, topic, 3)
    events = open_stream(stage, topics="a.*", tail="true", last_id=last_id).read()
    assert sorted(records_of(events)) == sorted([(topic, 3) for topic in old] + [(topic, 1) for topic in new])


def test_a_client_has_an_id_before_there_is_any_topic(stage: FeedShards) -> None:
    client = open_stream(stage, topics="none.*", tail="true")
    (heartbeat,) = client.read()
    client.stream.on_lost()
    topic = both(stage, "none.")[1]
    append(stage, topic, 1)
    events = open_stream(stage, topics="none.*", tail="true", last_id=heartbeat.id).read()
    assert records_of(events) == [(topic, 1)]


def test_more_than_64_topics_are_resumed_too(stage: FeedShards) -> None:
    topics = [f"many{number}" for number in range(70)]
    for topic in topics:
        append(stage, topic, 1)
    client = open_stream(stage, topics="many*")
    events = client.read()
    assert sorted(records_of(events)) == sorted((topic, 1) for topic in topics)
    client.stream.on_lost()
    append(stage, "many3", 2)
    stage.owner("many5").delete_topic("many5")
    events = open_stream(stage, topics="many*", last_id=events[-1].id).read()
    assert records_of(events) == [("many3", 2)]
    deleted = [event.data for event in events if event.name == "topic-deleted"]
    assert [(one["topic"], one["head_seq"]) for one in deleted] == [("many5", 1)]


def test_a_deleted_topic_is_followed_again_when_it_is_created_again(stage: FeedShards) -> None:
    for topic in both(stage, "t"):
        append(stage, topic, "old")
        client = open_stream(stage, topic)
        client.read()
        for _ in range(2):
            stage.owner(topic).delete_topic(topic)
            stage.settle()
            assert names_of(client.read()) == ["topic-deleted"]
            append(stage, topic, "new")
            stage.settle()
            assert records_of(client.read()) == [(topic, 1)]


def test_a_topic_created_again_while_the_client_was_away_is_reported(stage: FeedShards) -> None:
    for topic in both(stage, "t"):
        append(stage, topic, 1, 2, 3)
        client = open_stream(stage, topic)
        last_id = client.read()[-1].id
        client.stream.on_lost()
        stage.owner(topic).delete_topic(topic)
        client = open_stream(stage, topic, last_id=last_id)
        deleted, waiting = client.read()
        assert (deleted.name, deleted.data["head_seq"]) == ("topic-deleted", 3)
        assert waiting.name == "waiting"
        append(stage, topic, "new")
        stage.settle()
        assert records_of(client.read()) == [(topic, 1)]
        tombstone, *others = open_stream(stage, topic, last_id=last_id).read()
        assert (tombstone.name, tombstone.data["reason"]) == ("tombstone", "recreated")
        assert records_of(others) == [(topic, 1)]


def test_missing_topics_are_refused_where_the_client_asks_for_that(stage: FeedShards) -> None:
    topic = both(stage, "t")[1]
    for query in ({"topic": topic}, {"topics": f"{topic},x*"}, {"topics": "x*"}):
        status, error = open_stream(stage, **query, missing="refuse").refusal
        assert (status, error["code"]) == (404, "topic_not_found")
    append(stage, topic, 1)
    client = open_stream(stage, topic, missing="refuse")
    stage.owner(topic).delete_topic(topic)
    stage.settle()
    assert names_of(client.read())[-2:] == ["topic-deleted", "end"]
    assert client.stream.is_closed


def test_a_stream_says_once_that_it_has_no_room_for_more_topics() -> None:
    stage = FeedShards(max_watch_topics=4)
    named = both(stage, "named")[1]
    append(stage, "p0", 1)
    client = open_stream(stage, topics=f"p*,{named}")
    client.read()
    for number in range(1, 6):
        append(stage, f"p{number}", 1)
    stage.settle()
    events = client.read()
    # The topic that the client named keeps its place.
    assert len({topic for topic, _ in records_of(events)}) == 2
    limits = [event.data for event in events if event.name == "topic-limit"]
    assert limits == [{"max": 4}]
    append(stage, named, 1)
    append(stage, "p9", 1)
    stage.settle()
    events = client.read()
    assert (records_of(events), "topic-limit" in names_of(events)) == ([(named, 1)], False)
    again = open_stream(stage, topics="p*").read()
    assert (len(records_of(again)), names_of(again).count("topic-limit")) == (4, 1)


def test_a_full_stream_looks_again_when_a_topic_leaves() -> None:
    stage = FeedShards(max_watch_topics=2)
    for number in range(4):
        append(stage, f"p{number}", 1)
    client = open_stream(stage, topics="p*")
    assert names_of(client.read()).count("topic-limit") == 1
    records = []
    for topic, limits in (("p0", 1), ("p1", 0)):
        stage.owner(topic).delete_topic(topic)
        stage.settle()
        events = client.read()
        records += records_of(events)
        assert (len(records_of(events)), names_of(events).count("topic-limit")) == (1, limits)
    assert sorted(records) == [("p2", 1), ("p3", 1)]


def test_a_topic_whose_position_is_past_its_head_is_not_found_again(stage: FeedShards) -> None:
    here, away = both(stage, "t")
    append(stage, here, 1, 2)
    append(stage, away, 1, 2)
    last_id = open_stream(stage, topics="t*").read()[-1].id
    ahead = read_stream_id(last_id)
    assert ahead is not None
    ahead = {name: (seq + 7, epoch) for name, (seq, epoch) in ahead.items()}
    client = open_stream(stage, topics="t*", last_id=stream_id(ahead).decode())
    events = client.read()
    assert [event.data["code"] for event in events] == ["position_past_head"] * 2
    # The search at a shard that restarted lists its topics again.
    stage.end(1, OneShard.restart)
    stage.pass_time(1000)
    append(stage, away, 3)
    stage.settle()
    assert records_of(client.read()) == []
    client.stream.on_lost()
    again = open_stream(stage, topics="t*", last_id=events[-1].id).read()
    assert [event.data["code"] for event in again] == ["position_past_head"] * 2


def test_topics_of_a_shard_that_was_away_are_found_when_it_is_back(stage: FeedShards) -> None:
    before, meanwhile = stage.topics_on(1, 2)
    client = open_stream(stage, topics="t*")
    append(stage, before, 1)
    stage.settle()
    assert records_of(client.read()) == [(before, 1)]
    for end in (OneShard.kill, OneShard.restart):
        stage.cut()
        append(stage, meanwhile, 1)
        end(stage.away)
        stage.end(1, end)
        stage.pass_time(1000)
        assert (meanwhile, 1) in records_of(client.read())
        stage.owner(meanwhile).delete_topic(meanwhile)
        stage.pass_time(1000)
        client.read()
    append(stage, before, 2)
    stage.settle()
    assert records_of(client.read()) == [(before, 2)]


def test_a_stream_is_refused_while_a_shard_is_away_whose_topics_it_needs(stage: FeedShards) -> None:
    stage.cut()
    assert open_stream(stage, topics="t*").refusal[0] == 503
    here, away = both(stage, "t")
    assert open_stream(stage, away).refusal[0] == 503
    append(stage, here, 1)
    assert records_of(open_stream(stage, here).read()) == [(here, 1)]


def test_a_stream_that_ended_searches_no_more(stage: FeedShards) -> None:
    clients = [open_stream(stage, topics="t*"), open_stream(stage, both(stage, "t")[1])]
    for client in clients:
        client.stream.on_lost()
    stage.settle()
    before = stage.link.call_count
    for topic in both(stage, "t"):
        append(stage, topic, 1)
    stage.settle()
    assert stage.link.call_count == before


def test_a_stream_of_topics_that_exist_searches_for_none(stage: FeedShards) -> None:
    topic = both(stage, "t")[0]
    append(stage, topic, 1)
    before = stage.link.call_count
    client = open_stream(stage, topic)
    assert records_of(client.read()) == [(topic, 1)]
    assert stage.link.call_count == before


def test_a_heartbeat_has_the_position_after_records_that_were_filtered(stage: FeedShards) -> None:
    topic = both(stage, "t")[0]
    append(stage, topic, 1, tag="wanted")
    client = open_stream(stage, topic, match="wanted", heartbeat_ms="1000")
    assert records_of(client.read()) == [(topic, 1)]
    append(stage, topic, 2, 3, tag="other")
    stage.pass_time(1500)
    (heartbeat,) = client.read()
    client.stream.on_lost()
    append(stage, topic, 4, tag="wanted")
    events = open_stream(stage, topic, last_id=heartbeat.id).read()
    assert records_of(events) == [(topic, 4)]


def test_lines_have_no_line_end_within(stage: FeedShards) -> None:
    topic = both(stage, "t")[0]
    stage.owner(topic).append(topic, record(b'{"a":\r\n[1,\n2],"b":"x\\ny"}'))
    client = open_stream(stage, topic, accept=LINES)
    assert b'"data":{"a":  [1, 2],"b":"x\\ny"}}\n' in client.stream.written
    ((_, seq),) = records_of(client.read())
    assert seq == 1


def test_a_client_that_does_not_read_is_ended_with_a_position(stage: FeedShards) -> None:
    topic = both(stage, "t")[1]
    append(stage, topic, 1)
    client = open_stream(stage, topic, accept=LINES)
    client.read()
    client.stream.is_paused = True
    append(stage, topic, 2)
    stage.pass_time(PAUSED_SECONDS_MAX * 1000 + 40_000)
    end = client.read()[-1]
    assert (end.name, end.data["code"]) == ("error", "slow_consumer")
    assert records_of(open_stream(stage, topic, last_id=end.id).read()) == [(topic, 2)]


def test_a_drain_ends_streams_with_a_position(stage: FeedShards) -> None:
    client = open_stream(stage, topics="t*", accept=LINES)
    stage.workers[0].drain()
    end = client.read()[-1]
    assert (end.name, end.data["code"], client.stream.is_closed) == ("error", "shutting_down", True)
    assert open_stream(stage, topics="t*").refusal[0] == 503


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"since": "10"}, "since"),
        ({"since": "yesterday"}, "since"),
        ({"since": "10x"}, "since"),
        ({"since": "1m", "last": "1"}, "last"),
        ({"tail": "true", "after_seq": "1"}, "tail"),
        ({"tail": "maybe"}, "tail"),
        ({"after_seq": "-1"}, "after_seq"),
        ({"after_seq": "1", "from_seq": "2"}, "after_seq"),
        ({"epoch": "1"}, "epoch"),
        ({"heartbeat_ms": "999"}, "heartbeat_ms"),
        ({"node": "n" * 129}, "node"),
        ({"node": "[1]"}, "node"),
        ({"match": "[1]"}, "match"),
        ({"missing": "later"}, "missing"),
        ({"include_tags": "2"}, "include_tags"),
        ({"consistency": "weak"}, "consistency"),
        ({"max_batch_bytes": "1 XB"}, "max_batch_bytes"),
        ({"last_id": "!"}, "last-event-id"),
    ],
)
def test_a_wrong_parameter_is_named(stage: FeedShards, query: dict[str, str], field: str) -> None:
    status, error = open_stream(stage, "t", **query).refusal
    assert (status, error["detail"]["field"]) == (400, field)


@pytest.mark.parametrize("topics", ["", "a,", "a b", "a" * 256, "/", ",".join(f"t{n}" for n in range(257))])
def test_wrong_topics_are_named(stage: FeedShards, topics: str) -> None:
    status, error = open_stream(stage, topics=topics).refusal
    assert (status, error["detail"]["field"]) == (400, "topics")


def test_a_position_past_the_head_is_refused(stage: FeedShards) -> None:
    topic = both(stage, "t")[1]
    append(stage, topic, 1)
    epoch = stage.owner(topic).topic(topic).epoch
    assert open_stream(stage, topic, after_seq=5, epoch=epoch).refusal[0] == 409
