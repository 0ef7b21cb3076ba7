"""Watch sessions that look for topics: what they find, what they remember, and what survives a restart."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contract.api_keys import READ, ApiKey
from shared.contract.errors import Refusal
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.feed_shards import FeedShards
from tests.harness.stage.topic_streams import SessionClient, create_session, names_of, records_of


@pytest.fixture(name="stage")
def _stage() -> FeedShards:
    return FeedShards()


def both(stage: FeedShards, prefix: str) -> list[str]:
    """Return a name with this prefix for each shard."""
    return [
        next(name for at in range(100) if stage.number_of(name := f"{prefix}{at}") == number)
        for number in (0, 1)
    ]


def append(stage: FeedShards, topic: str, *data: object) -> None:
    stage.owner(topic).append(topic, *data)


def create(stage: FeedShards, topics: dict[str, Any], **body: Any) -> Any:
    status, answer = create_session(stage, {"topics": topics, **body})
    assert status == 200, answer
    return answer


def open_session(stage: FeedShards, wid: str, last_id: str = "", key: ApiKey | None = None) -> SessionClient:
    client = SessionClient(stage.workers[0], wid, last_id=last_id, key=key)
    stage.settle()
    return client


def test_patterns_and_waiting_names_find_topics_of_all_shards(stage: FeedShards) -> None:
    old, new, named = both(stage, "orders.old"), both(stage, "orders.new"), both(stage, "named")
    for topic in (*old, named[0]):
        append(stage, topic, 1, 2)
    answer = create(stage, {"orders.*": {"tail": True}, **{name: {} for name in named}}, missing="wait")
    assert set(answer["topics"]) == {*old, named[0]}
    assert [answer["topics"][topic]["from_seq"] for topic in (*old, named[0])] == [2, 2, 0]
    assert (answer["patterns"], answer["waiting"]) == (["orders.*"], [named[1]])
    client = open_session(stage, answer["wid"])
    for topic in (*old, *new, named[1]):
        append(stage, topic, 3)
    stage.settle()
    expected = [(topic, 3) for topic in old] + [(topic, 1) for topic in (*new, named[1])]
    assert sorted(records_of(client.read())) == sorted([*expected, (named[0], 1), (named[0], 2)])


def test_each_pattern_has_its_position_and_a_name_goes_before(stage: FeedShards) -> None:
    for topic in ("a.1", "a.2", "b.1"):
        append(stage, topic, 1, 2, 3)
    topics = {"a.*": {"last": 1}, "*.1": {"after_seq": 0}, "a.2": {"after_seq": 1}}
    answer = create(stage, topics)
    assert {name: one["from_seq"] for name, one in answer["topics"].items()} == {"a.1": 2, "a.2": 1, "b.1": 0}


def test_topics_created_while_the_client_is_away_are_delivered_once(stage: FeedShards) -> None:
    old, new = both(stage, "a.old"), both(stage, "a.new")
    for topic in old:
        append(stage, topic, 1)
    wid = create(stage, {"a.*": {"tail": True}})["wid"]
    before = both(stage, "a.before")
    for topic in before:
        # Created after the session, and before its first stream.
        append(stage, topic, 1)
    client = open_session(stage, wid)
    events = client.read()
    assert sorted(records_of(events)) == sorted((topic, 1) for topic in before)
    client.stream.on_lost()
    for topic in (*old, *new):
        append(stage, topic, 2)
    expected = sorted([(topic, 2) for topic in old] + [(topic, 1) for topic in new])
    # With the last id, again with it, and from memory: everything, again, and nothing.
    for last_id in (events[-1].id, events[-1].id, ""):
        client = open_session(stage, wid, last_id)
        assert sorted(records_of(client.read())) == (expected if last_id else [])
        client.stream.on_lost()


@pytest.mark.parametrize("end", [OneShard.kill, OneShard.restart])
def test_a_restored_session_continues_at_the_id(stage: FeedShards, end: Any) -> None:
    old, new = both(stage, "a.old"), both(stage, "a.new")
    for topic in old:
        append(stage, topic, 1)
    wid = create(stage, {"a.*": {"tail": True}, "later": {}}, missing="wait")["wid"]
    client = open_session(stage, wid)
    for topic in new:
        append(stage, topic, 1, 2)
    stage.settle()
    last_id = client.read()[-1].id
    stage.end(0, end)
    for topic in (*new, "later"):
        append(stage, topic, 3)
    expected = sorted([(topic, 3) for topic in new] + [("later", 1)])
    assert sorted(records_of(open_session(stage, wid, last_id).read())) == expected
    stage.end(0, end)
    # Without an id, from the positions of the definition.
    everything = sorted([(topic, seq) for topic in new for seq in (1, 2, 3)] + [("later", 1)])
    assert sorted(records_of(open_session(stage, wid).read())) == everything


def test_a_session_without_any_topic_survives_a_checkpoint(stage: FeedShards) -> None:
    wid = create(stage, {"none.*": {}})["wid"]
    (heartbeat,) = open_session(stage, wid).read()
    for _ in range(2):
        stage.end(0, OneShard.restart)
    topic = both(stage, "none.")[1]
    append(stage, topic, 1)
    assert records_of(open_session(stage, wid, heartbeat.id).read()) == [(topic, 1)]


def test_the_id_moves_a_session_back_and_never_forward(stage: FeedShards) -> None:
    topic = both(stage, "a")[0]
    append(stage, topic, 1, 2)
    wid = create(stage, {"a*": {}})["wid"]
    first = open_session(stage, wid)
    early = first.read()[-1].id
    append(stage, topic, 3)
    stage.settle()
    late = first.read()[-1].id
    for last_id, seqs in ((early, [3]), (late, []), (early, [3])):
        client = open_session(stage, wid, last_id)
        assert [seq for _, seq in records_of(client.read())] == seqs
    assert [event.data["code"] for event in first.read()] == ["taken_over"]


@pytest.mark.parametrize("last_id", ["wrong", "eyJiIjpbMSwxXX0"])
def test_an_id_of_another_session_is_refused(stage: FeedShards, last_id: str) -> None:
    client = open_session(stage, create(stage, {"a*": {}})["wid"], last_id)
    status, error = client.refusal
    assert (status, error["detail"]["field"]) == (400, "last-event-id")


def test_a_topic_deleted_or_created_again_meanwhile_is_reported(stage: FeedShards) -> None:
    for topic in both(stage, "t"):
        append(stage, topic, 1, 2, 3)
        wid = create(stage, {"t*": {}})["wid"]
        client = open_session(stage, wid)
        last_id = client.read()[-1].id
        client.stream.on_lost()
        stage.owner(topic).delete_topic(topic)
        client = open_session(stage, wid, last_id)
        assert "topic-deleted" in names_of(client.read())
        append(stage, topic, "new")
        stage.settle()
        assert records_of(client.read()) == [(topic, 1)]
        reasons = [
            one.data["reason"] for one in open_session(stage, wid, last_id).read() if one.name == "tombstone"
        ]
        assert reasons == ["recreated"]
        stage.owner(topic).delete_topic(topic)


def test_more_than_64_topics_are_resumed_after_a_restart(stage: FeedShards) -> None:
    wid = create(stage, {"many*": {}})["wid"]
    client = open_session(stage, wid)
    topics = [f"many{number}" for number in range(70)]
    for topic in topics:
        append(stage, topic, 1)
    stage.settle()
    events = client.read()
    assert sorted(records_of(events)) == sorted((topic, 1) for topic in topics)
    stage.end(0, OneShard.kill)
    append(stage, "many3", 2)
    stage.owner("many5").delete_topic("many5")
    events = open_session(stage, wid, events[-1].id).read()
    assert records_of(events) == [("many3", 2)]
    assert [event.data["topic"] for event in events if event.name == "topic-deleted"] == ["many5"]


def test_a_session_opens_while_a_shard_is_away_and_has_its_topics_later(stage: FeedShards) -> None:
    here, away = both(stage, "t")
    wid = create(stage, {"t*": {}})["wid"]
    stage.cut()
    append(stage, here, 1)
    append(stage, away, 1)
    client = open_session(stage, wid)
    assert records_of(client.read()) == [(here, 1)]
    stage.reconnect()
    stage.pass_time(1000)
    assert records_of(client.read()) == [(away, 1)]
    stage.cut()
    assert create_session(stage, {"topics": {"t*": {}}})[0] == 503


def test_a_limit_is_reported_and_a_deletion_makes_room() -> None:
    stage = FeedShards(max_watch_topics=3)
    for number in range(3):
        append(stage, f"p{number}", 1)
    wid = create(stage, {"p*": {}, "named": {}}, missing="wait")["wid"]
    client = open_session(stage, wid)
    events = client.read()
    assert (len(records_of(events)), names_of(events).count("topic-limit")) == (2, 1)
    append(stage, "named", 1)
    stage.settle()
    assert records_of(client.read()) == [("named", 1)]
    stage.owner("p0").delete_topic("p0")
    stage.settle()
    events = client.read()
    assert (records_of(events), "topic-limit" in names_of(events)) == ([("p2", 1)], False)


def test_names_are_refused_waited_for_or_left_out(stage: FeedShards) -> None:
    append(stage, "a1", 1)
    topics = {"a*": {}, "left.out": {}}
    assert create_session(stage, {"topics": topics})[0] == 404
    status, answer = create_session(stage, {"topics": topics}, is_lenient=True)
    assert (status, list(answer["topics"]), "waiting" in answer) == (200, ["a1"], False)
    client = open_session(stage, answer["wid"])
    append(stage, "left.out", 1)
    stage.settle()
    assert records_of(client.read()) == [("a1", 1)]


def test_a_key_covers_what_a_session_finds(stage: FeedShards) -> None:
    key = ApiKey("k", frozenset({READ}), ("a.x",))
    covered, outside = both(stage, "a.x"), both(stage, "a.y")
    for topics in ({outside[0]: {}}, {"b*": {}}, {"a.y*": {}, "a.x*": {}}):
        refusal = create_session(stage, {"topics": topics}, key=key)[1]
        assert isinstance(refusal, Refusal)
        assert refusal.code == "forbidden"
    answer = create_session(stage, {"topics": {"a.*": {}, "b*": {}}}, key=key, is_lenient=True)[1]
    assert answer["patterns"] == ["a.*"]
    client = open_session(stage, answer["wid"], key=key)
    for topic in (*outside, *covered):
        append(stage, topic, 1)
    stage.settle()
    assert sorted(records_of(client.read())) == [(topic, 1) for topic in sorted(covered)]
    narrower = ApiKey("k", frozenset({READ}), ("a.x1",))
    assert open_session(stage, answer["wid"], key=narrower).refusal[0] == 403
    free = create(stage, {"a.*": {}})["wid"]
    session = stage.workers[0].streams.sessions.find(stage.workers[0].streams.ids.parse(free).session)  # type: ignore[union-attr]
    assert session is not None
    assert not all(map(key.allows_name, session.required))


@pytest.mark.parametrize(
    ("position", "field"),
    [({"after_seq": 1}, "topics.a*.after_seq"), ({"epoch": 1, "after_seq": 0}, "topics.a*.epoch")],
)
def test_a_position_of_one_topic_is_refused_for_a_pattern(
    stage: FeedShards, position: dict[str, int], field: str
) -> None:
    refusal = create_session(stage, {"topics": {"a*": position}})[1]
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(f"{field}: must not be sent for a pattern")


def test_a_session_without_a_stream_searches_for_nothing(stage: FeedShards) -> None:
    wid = create(stage, {"t*": {}})["wid"]
    client = open_session(stage, wid)
    client.stream.on_lost()
    stage.settle()
    before = stage.link.call_count
    for topic in both(stage, "t"):
        append(stage, topic, 1)
    stage.settle()
    assert stage.link.call_count == before


def test_drain_and_slow_clients_end_the_stream_and_the_session_stays(stage: FeedShards) -> None:
    wid = create(stage, {"t*": {}})["wid"]
    topic = both(stage, "t")[1]
    append(stage, topic, 1)
    client = open_session(stage, wid)
    client.read()
    assert stage.workers[0].streams.sessions.stream_count == 1
    client.stream.is_paused = True
    append(stage, topic, 2)
    stage.pass_time(70_000)
    end = client.read()[-1]
    assert (end.data["code"], stage.workers[0].streams.sessions.stream_count) == ("slow_consumer", 0)
    client = open_session(stage, wid, end.id)
    assert records_of(client.read()) == [(topic, 2)]
    stage.workers[0].drain()
    assert [event.data["code"] for event in client.read()] == ["shutting_down"]
