"""Event streams: each topic is delivered from its cursor on, and every event id can be resumed from."""

from __future__ import annotations

import re

from tests.harness.shard.shard_driver import PATHS
from tests.harness.stage.feed_shards import (
    Event,
    FakeStream,
    FeedShards,
    StreamTopics,
    follow,
    reader_options,
)
from topicsd.disk.layout import wal_name
from topicsd.stream.cursor_token import MAP_TOPICS_MAX, read_token
from topicsd.stream.event_stream import LAGGING_SECONDS, PAUSED_SECONDS_MAX
from topicsd.stream.read_limiter import CONCURRENT_READS_MAX, RESUMES_PER_TURN_MAX
from topicsd.stream.sse_stream import SseStream


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def seqs(events: list[Event], topic: str) -> list[int]:
    return [
        record["$seq"]
        for event in events
        if event.name == "record" and event.data["topic"] == topic
        for record in event.data["records"]
    ]


def test_existing_records_are_sent_before_caught_up() -> None:
    stage = FeedShards()
    stage.home.append("c0", {"n": 1}, "two")
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}))
    assert stream.written.startswith(b"retry: 2000\n\n")
    events = stream.take()
    assert names(events) == ["record", "caught-up"]
    assert events[0].data["records"][0]["data"] == {"n": 1}
    assert {key: events[0].data[key] for key in ("topic", "from_seq", "to_seq", "head_seq")} == {
        "topic": "c0",
        "from_seq": 0,
        "to_seq": 2,
        "head_seq": 2,
    }
    assert events[1].data == {"topic": "c0", "head_seq": 2}
    assert read_token(events[1].id, ["c0"]) == {"c0": (2, None)}


def test_each_id_is_the_cursor_of_all_topics_after_its_event() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stage.away.append("d1", 1, 2)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0, "d1": 1}))
    stage.settle()
    stream.take()
    stage.away.append("d1", 3)
    stage.settle()
    stage.home.append("c0", 2)
    stage.settle()
    cursors = [read_token(event.id, ["c0", "d1"]) for event in stream.take()]
    assert cursors == [{"c0": (1, None), "d1": (3, None)}] * 2 + [{"c0": (2, None), "d1": (3, None)}] * 2


def test_with_many_topics_the_id_is_opaque_and_complete() -> None:
    stage = FeedShards()
    topics = stage.topics_on(0, MAP_TOPICS_MAX + 1)
    for topic in topics:
        stage.owner(topic).append(topic, 1)
    stream, _ = follow(stage, StreamTopics(stage, dict.fromkeys(topics, 0)))
    stage.settle()
    last = stream.take()[-1].id
    assert read_token(last, topics) == dict.fromkeys(topics, (1, None))
    assert read_token(last, topics[:-1]) is None


def test_a_stream_that_starts_at_the_head_reports_caught_up_once() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 1}))
    assert names(stream.take()) == ["caught-up"]
    stage.home.append("c0", 2)
    stage.settle()
    assert names(stream.take()) == ["record", "caught-up"]


def test_a_cursor_in_evicted_records_gets_a_tombstone_at_connect() -> None:
    stage = FeedShards()
    stage.home.put("c0", cap_records=2)
    stage.home.append("c0", *range(5))
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 1}))
    events = stream.take()
    assert names(events) == ["tombstone", "record", "caught-up"]
    assert events[0].data == {
        "topic": "c0",
        "reason": "cap",
        "gap_from": 2,
        "gap_to": 3,
        "earliest_seq": 4,
        "head_seq": 5,
    }
    assert read_token(events[0].id, ["c0"]) == {"c0": (3, None)}


def test_eviction_ahead_of_an_open_stream_is_reported_with_its_reason() -> None:
    stage = FeedShards()
    stage.home.put("c0", cap_records=2)
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}))
    stream.take()
    stream.is_paused = True
    stage.home.append("c0", *range(5))
    stage.settle()
    stage.home.append("c0", *range(5))
    stage.settle()
    stream.unpause()
    stage.settle()
    events = stream.take()
    assert [event.data["reason"] for event in events if event.name == "tombstone"] == ["cap"]
    assert seqs(events, "c0") == [10, 11]


def test_line_ends_inside_data_do_not_change_its_value() -> None:
    stage = FeedShards()
    stage.home.append("c0", b'{"a":\n1,\r\n"b":2}')
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}))
    assert stream.take()[0].data["records"][0]["data"] == {"a": 1, "b": 2}


def test_a_position_past_the_head_is_an_error_of_its_topic_only() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stage.away.append("d1", 1)
    stream, sse = follow(stage, StreamTopics(stage, {"c0": 9, "d1": 9}))
    stage.settle()
    errors = {event.data["topics"][0]: event.data for event in stream.take() if event.name == "error"}
    assert {name: (one["code"], one["detail"]["head_seq"]) for name, one in errors.items()} == {
        "c0": ("position_past_head", 1),
        "d1": ("position_past_head", 1),
    }
    stage.home.append("c0", 2)
    stage.away.append("d1", 2)
    stage.settle()
    assert stream.take() == []
    sse.end("shutting_down", "")


def test_damaged_records_are_one_error_with_their_range_and_an_id_after_them() -> None:
    stage = FeedShards()
    for value in range(5):
        stage.home.append("c0", value)
    stage.home.pass_time(200)
    for seq in (2, 3, 4):
        file, at = stage.home.topic("c0").run.place_of(seq, stage.home.shard.state.files)
        stage.home.disk.flip(f"{PATHS.wal}/{file}", at + 20)
    topics = StreamTopics(stage, {"c0": 0})
    stream, _ = follow(stage, topics)
    events = stream.take()
    assert names(events) == ["record", "error", "record", "caught-up"]
    assert (events[1].data["code"], events[1].data["topics"]) == ("corrupt_segment", ["c0"])
    detail = {"segment": wal_name(1), "first_seq": 2, "last_seq": 4, "next_from_seq": 4}
    assert events[1].data["detail"] == detail
    assert [read_token(event.id, ["c0"]) for event in events[:3]] == [
        {"c0": (1, None)},
        {"c0": (4, None)},
        {"c0": (5, None)},
    ]


def test_a_deleted_topic_is_reported_and_the_others_continue() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stage.away.append("d1", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0, "d1": 0}))
    stage.settle()
    stream.take()
    stage.home.delete_topic("c0")
    stage.away.append("d1", 2)
    stage.settle()
    events = stream.take()
    assert names(events)[0] == "topic-deleted"
    assert events[0].data == {"topic": "c0", "head_seq": 1, "reason": "deleted"}
    assert seqs(events, "d1") == [2]


def test_topics_of_an_unavailable_shard_are_named_and_resumed() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stage.away.append("d1", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0, "d1": 0}))
    stage.settle()
    stream.take()
    stage.restart_away()
    stage.pass_time(500)
    events = stream.take()
    assert names(events) == ["error"]
    assert events[0].data["topics"] == ["d1"]
    assert events[0].data["code"] == "not_ready"
    stage.home.append("c0", 2)
    stage.away.append("d1", 2)
    stage.settle()
    stage.reconnect()
    stage.pass_time(500)
    events = stream.take()
    assert (seqs(events, "c0"), seqs(events, "d1")) == ([2], [2])


def test_an_idle_stream_gets_heartbeats_without_an_id() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 1}, heartbeat_ms=1000))
    stream.take()
    stage.pass_time(900)
    assert stream.written == b""
    stage.home.append("c0", 2)
    stage.settle()
    assert names(stream.take()) == ["record", "caught-up"]
    stage.pass_time(900)
    assert stream.written == b"", "an event was written less than the interval ago"
    stage.pass_time(200)
    assert re.fullmatch(rb": hb \d{13}\n\n", stream.written)
    stream.written = b""
    stage.pass_time(3000)
    assert stream.written.count(b": hb ") == 3


def test_a_client_that_does_not_read_lags_and_then_its_stream_ends_with_a_cursor() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    following = StreamTopics(stage, {"c0": 0}, heartbeat_ms=60_000)
    stream, _ = follow(stage, following)
    stream.take()
    stream.is_paused = True
    stage.home.append("c0", 2)
    stage.settle()
    stage.pass_time(round(LAGGING_SECONDS * 1000) - 1000)
    assert not stream.is_lagging
    stage.pass_time(2000)
    assert stream.is_lagging
    stage.pass_time(round((PAUSED_SECONDS_MAX - LAGGING_SECONDS) * 1000))
    (event,) = stream.take()
    assert (event.name, event.data["code"]) == ("error", "slow_consumer")
    assert read_token(event.id, ["c0"]) == {"c0": (1, None)}
    assert following.seqs == [1]
    assert (stream.is_closed, stream.has_ended, stream.is_lagging) == (True, True, False)


def test_a_client_that_reads_again_in_time_stops_lagging() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}, heartbeat_ms=60_000))
    stream.take()
    stream.is_paused = True
    stage.home.append("c0", 2)
    stage.settle()
    stage.pass_time(20_000)
    stream.unpause()
    stage.settle()
    assert not stream.is_lagging
    assert seqs(stream.take(), "c0") == [2]
    stage.pass_time(20_000)
    assert not stream.is_closed


def test_a_disconnected_client_leaves_no_waiters() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stage.away.append("d1", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0, "d1": 0}))
    stage.settle()
    stream.on_lost()
    stage.settle()
    assert not stage.home.topic("c0").waiters
    assert not stage.away.topic("d1").waiters


def test_an_id_after_a_recreated_topic_includes_the_epoch() -> None:
    stage = FeedShards()
    stage.home.append("c0", *range(5))
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}))
    stream.take()
    stream.is_paused = True
    stage.home.delete_topic("c0")
    stage.home.append("c0", "new", "newer")
    stage.settle()
    stream.unpause()
    stage.settle()
    events = stream.take()
    assert names(events) == ["tombstone", "record", "caught-up"]
    epoch = stage.home.topic("c0").epoch
    assert [read_token(event.id, ["c0"]) for event in events] == [{"c0": (seq, epoch)} for seq in (0, 2, 2)]


def test_a_client_resumes_after_its_last_id() -> None:
    stage = FeedShards()
    stage.home.append("c0", *range(10))
    first, sse = follow(stage, StreamTopics(stage, {"c0": 0}), limit=4)
    events = first.take()
    sse.end("shutting_down", "the server stops")
    cursor = read_token(events[0].id, ["c0"])
    assert cursor is not None
    second, _ = follow(stage, StreamTopics(stage, {name: seq for name, (seq, _) in cursor.items()}))
    assert seqs(second.take(), "c0") == [5, 6, 7, 8, 9, 10]


def test_records_after_a_loss_begin_where_it_ends() -> None:
    stage = FeedShards()
    stage.home.put("c0", cap_records=2)
    stage.home.append("c0", *range(5))
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}))
    tombstone, record, _ = stream.take()
    assert (tombstone.data["gap_to"], record.data["from_seq"], record.data["to_seq"]) == (3, 3, 5)


def test_a_paused_stream_of_many_topics_has_few_reads_in_progress() -> None:
    stage = FeedShards()
    topics = stage.topics_on(1, 50)
    for topic in topics:
        stage.owner(topic).append(topic, 1)
    following = StreamTopics(stage, dict.fromkeys(topics, 0))
    stream = FakeStream()
    stream.is_paused = False
    sse = SseStream(
        stream,
        stage.feeds,
        stage.home.loop,
        stage.clock,
        following,
        reader_options(),
        stream.on_end,
        stream.on_lag,
    )
    sse.begin()
    stream.is_paused = True
    stage.settle()
    assert len(stream.take()) <= 2 * CONCURRENT_READS_MAX
    stream.unpause()
    stage.settle()
    stream.unpause()
    stage.settle()
    assert following.seqs == [1] * 50


def test_a_bounded_number_of_topics_resumes_in_each_turn() -> None:
    stage = FeedShards()
    topics = stage.topics_on(0, 4 * RESUMES_PER_TURN_MAX)
    for topic in topics:
        stage.owner(topic).append(topic, 1)
    followed, stream = StreamTopics(stage, dict.fromkeys(topics, 0)), FakeStream()
    home = stage.home
    sse = SseStream(
        stream, stage.feeds, home.loop, stage.clock, followed, reader_options(), stream.on_end, stream.on_lag
    )
    sse.begin()
    assert names(stream.take()).count("record") == RESUMES_PER_TURN_MAX
    stage.settle()
    assert names(stream.take()).count("record") == 3 * RESUMES_PER_TURN_MAX
    assert followed.seqs == [1] * len(topics)
    stream.is_paused = True
    for topic in topics:
        stage.owner(topic).append(topic, 2)
    stage.settle()
    stream.unpause()
    assert names(stream.take()).count("record") == RESUMES_PER_TURN_MAX
    stage.settle()
    assert names(stream.take()).count("record") == 3 * RESUMES_PER_TURN_MAX
    assert followed.seqs == [2] * len(topics)


def test_a_client_that_does_not_read_heartbeats_is_too_slow() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}, heartbeat_ms=1000))
    stream.take()
    stream.is_paused = True
    stage.pass_time(1000 + int(LAGGING_SECONDS * 1000))
    assert stream.is_lagging
    stage.pass_time(int((PAUSED_SECONDS_MAX - LAGGING_SECONDS) * 1000))
    assert stream.is_closed
    assert [event.data["code"] for event in stream.take()] == ["slow_consumer"]


def test_the_slow_timer_starts_when_the_stream_pauses() -> None:
    """Even if the client has no more events to receive, and no heartbeat is due soon."""
    stage = FeedShards()
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}, heartbeat_ms=60_000))
    stream.take()
    stream.pauses_at_write = True
    stage.home.append("c0", 2)
    stage.settle()
    stage.pass_time(int(LAGGING_SECONDS * 1000))
    assert stream.is_lagging
    stage.pass_time(int((PAUSED_SECONDS_MAX - LAGGING_SECONDS) * 1000))
    assert stream.is_closed


def test_a_client_that_does_not_read_causes_no_busy_loop() -> None:
    stage = FeedShards()
    stage.home.append("c0", 1)
    stream, _ = follow(stage, StreamTopics(stage, {"c0": 0}, heartbeat_ms=1000))
    stream.is_paused = True
    loop, timer_count = stage.home.loop, 0
    until_ns = stage.clock.monotonic_ns() + 10 * 10**9
    while (due_ns := loop.next_timer_ns()) is not None and due_ns < until_ns:
        loop.advance((due_ns - stage.clock.monotonic_ns()) / 1e6)
        timer_count += 1
        # Most are timers of the log.
        assert timer_count < 1000, "the stream has a timer that fires without a pause"
