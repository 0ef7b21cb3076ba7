"""Every message of a WebSocket, through both lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient
from tests.harness.clients.ws_client import WsClient, upgrade_request
from tests.harness.server.http_server import HttpServer

pytestmark = pytest.mark.http1


@pytest.fixture
def socket(server: HttpServer, lane: str) -> Iterator[WsClient]:
    with WsClient(server.ports[lane]) as client:
        yield client


def _records(*data: Any) -> list[Any]:
    return [{"data": one} for one in data]


def _data(message: Any) -> list[Any]:
    return [record["data"] for record in message["records"]]


# -- publish -----------------------------------------------------------------------------------------------


def test_a_publish_is_an_append(socket: WsClient, api: Api, topic: str) -> None:
    ack = socket.ask("publish", topic=topic, records=_records(1, "two"), node="n", request_id="r-1")
    answer = api.diff()
    assert [record["data"] for record in answer["records"]] == [1, "two"]
    assert {record["$node"] for record in answer["records"]} == {"n"}
    assert ack.pop("performance")
    assert ack == {
        "op": "ack",
        "request_id": "r-1",
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
        "durability": "disk",
    }


def test_seqs_are_left_out_on_request(socket: WsClient, topic: str) -> None:
    assert "seqs" not in socket.ask("publish", topic=topic, records=_records(1), return_seqs=False)


def test_data_comes_back_byte_for_byte(socket: WsClient, api: Api, topic: str) -> None:
    data = b'{"b": 1e400, "a":12345678901234567890.10,  "a":"\xc3\xa9"}'
    socket.say_raw(b'{"records":[{"data":%b}],"topic":"%b","op":"publish"}' % (data, topic.encode()))
    socket.expect("ack")
    assert data in api.call("POST", "/diff", {}).body
    socket.say("subscribe", topic=topic)
    socket.expect("subscribed")
    assert data in socket.read_frame()[1]


def test_an_idempotency_key_counts_once(socket: WsClient, api: Api, topic: str) -> None:
    sent = {"topic": topic, "records": _records(1), "idempotency_key": "k"}
    assert socket.ask("publish", **sent)["deduped"] is False
    assert socket.ask("publish", **sent)["deduped"] is True
    assert socket.ask("publish", **{**sent, "records": _records(2)})["code"] == "idempotency_mismatch"
    assert api.state()["head_seq"] == 1


def test_a_publish_may_have_jobs_wait(socket: WsClient, topic: str, api: Api) -> None:
    api.put(type="queue")
    message = socket.ask("publish", topic=topic, records=_records(1), delay_ms=60_000)
    assert message["op"] == "ack"
    assert api.state()["queue"]["delayed"] == 1
    assert socket.ask("publish", topic=topic, records=_records(1), delay_ms=-1)["code"] == "invalid_request"


def test_a_publish_may_say_what_becomes_of_a_new_topic(socket: WsClient, topic: str, api: Api) -> None:
    message = socket.ask("publish", topic=topic, records=_records(1), create=False, request_id=7)
    assert (message["op"], message["code"], message["request_id"]) == ("error", "topic_not_found", 7)
    config = {"durability": "fsync", "cap_records": 5}
    assert socket.ask("publish", topic=topic, records=_records(1), config=config)["durability"] == "fsync"
    assert api.state()["config"]["cap_records"] == 5


def test_a_cap_that_refuses_says_what_it_is(socket: WsClient, topic: str) -> None:
    config = {"cap_records": 1, "discard": "reject"}
    socket.ask("publish", topic=topic, records=_records(1), config=config)
    message = socket.ask("publish", topic=topic, records=_records(1))
    assert message["code"] == "topic_full"
    assert message["detail"]["cap_records"] == 1


def test_many_publishes_are_on_their_way_and_each_is_acked(socket: WsClient, topic: str, api: Api) -> None:
    for number in range(200):
        socket.say("publish", topic=topic, records=_records(number), request_id=number)
    acks = [socket.expect("ack") for _ in range(200)]
    assert [ack["first_seq"] for ack in acks] == [ack["request_id"] + 1 for ack in acks]
    assert api.state()["head_seq"] == 200


def test_what_comes_behind_a_publish_sees_what_it_did(socket: WsClient, topic: str) -> None:
    socket.say("publish", topic=topic, records=_records(1), config={"durability": "fsync"})
    socket.say("subscribe", topic=topic, tail=True)
    socket.say("publish", topic=topic, records=_records(2))
    socket.expect("ack")
    assert socket.expect("subscribed")["topics"][topic]["from_seq"] == 1
    socket.expect("caught_up")
    later = [socket.read() for _ in range(3)]
    assert {one["op"] for one in later} == {"record", "ack", "caught_up"}


# -- subscribe ---------------------------------------------------------------------------------------------


def test_a_subscription_delivers_existing_and_new_records(socket: WsClient, api: Api, topic: str) -> None:
    api.append(1, 2)
    epoch = api.state()["epoch"]
    socket.say("subscribe", topic=topic, request_id="s")
    place = {"from_seq": 0, "head_seq": 2, "earliest_seq": 1, "epoch": epoch}
    assert socket.read() == {"op": "subscribed", "request_id": "s", "topics": {topic: place}}
    message = socket.expect("record", topic=topic, epoch=epoch, from_seq=0, to_seq=2, head_seq=2)
    assert message["records"] == [
        {"$seq": 1, "$ts": message["records"][0]["$ts"], "data": 1},
        {"$seq": 2, "$ts": message["records"][1]["$ts"], "data": 2},
    ]
    assert socket.read() == {"op": "caught_up", "topic": topic, "epoch": epoch, "head_seq": 2}
    api.append("later")
    assert _data(socket.expect("record", from_seq=2, to_seq=3)) == ["later"]
    socket.expect("caught_up", head_seq=3)


@pytest.mark.parametrize(
    ("position", "seqs"), [({"from_seq": 2}, [3]), ({"from_seq": 0}, [1, 2, 3]), ({}, [1, 2, 3])]
)
def test_a_subscription_begins_at_its_position(
    socket: WsClient, api: Api, topic: str, position: dict[str, Any], seqs: list[int]
) -> None:
    api.append(1, 2, 3)
    socket.ask("subscribe", topic=topic, **position)
    assert [record["$seq"] for record in socket.expect("record")["records"]] == seqs


def test_the_tail_is_what_comes_from_now_on(socket: WsClient, api: Api, topic: str) -> None:
    api.append(1, 2)
    assert socket.ask("subscribe", topics=topic, tail=True)["topics"][topic]["from_seq"] == 2
    socket.expect("caught_up", head_seq=2)
    api.append(3)
    assert _data(socket.expect("record")) == [3]


def test_several_topics_each_have_their_place(
    socket: WsClient, api: Api, server: HttpServer, lane: str
) -> None:
    names = [f"{api.topic}-{letter}" for letter in "abc"]
    for name in names:
        Api(api.client, name).append(1, 2)
    places: dict[str, Any] = {names[0]: {"from_seq": 1}, names[1]: {"tail": True}, names[2]: {}}
    message = socket.ask("subscribe", topics=places, from_seq=2)
    assert {name: place["from_seq"] for name, place in message["topics"].items()} == dict(
        zip(names, [1, 2, 2], strict=True)
    )
    first = socket.expect("record", topic=names[0])
    assert _data(first) == [2]
    kinds = [(one["op"], one["topic"]) for one in (socket.read() for _ in range(3))]
    assert sorted(kinds) == [("caught_up", name) for name in names]
    assert set(socket.ask("subscribe", topics=names[:2], tail=True)["topics"]) == set(names[:2])


def test_fields_are_left_out_and_nodes_are_skipped_as_asked(socket: WsClient, api: Api, topic: str) -> None:
    record = b'{"data":1,"tag":"t","meta":{"m":1},"node":"%b"}'
    api.put(durability="fsync")
    api.append_raw(record % b"me")
    api.append_raw(record % b"you")
    socket.ask("subscribe", topic=topic, node="me", include_tags=True, include_data=False)
    (sent,) = socket.expect("record", from_seq=0, to_seq=2)["records"]
    assert sent == {"$seq": 2, "$ts": sent["$ts"], "$node": "you", "$tag": "t", "meta": {"m": 1}}
    socket.expect("caught_up")
    socket.ask("subscribe", topic=topic, node=["me", "you"])
    socket.expect("caught_up", head_seq=2)
    socket.ask("subscribe", topic=topic, include_meta=False, consistency="strong", limit=1)
    for _ in range(2):
        (sent,) = socket.expect("record")["records"]
        assert set(sent) == {"$seq", "$ts", "$node", "data"}
    socket.expect("caught_up")


def test_a_batch_is_bounded_by_records_and_bytes(socket: WsClient, api: Api, topic: str) -> None:
    api.append(*["x" * 1000] * 6)
    socket.ask("subscribe", topic=topic, limit=2)
    assert [len(socket.expect("record")["records"]) for _ in range(3)] == [2, 2, 2]
    socket.expect("caught_up")
    socket.ask("subscribe", topic=topic, max_batch_bytes=1)
    assert [len(socket.expect("record")["records"]) for _ in range(6)] == [1] * 6
    socket.expect("caught_up")
    socket.ask("subscribe", topic=topic, limit=0, max_batch_bytes=0)
    assert len(socket.expect("record")["records"]) == 6


def test_the_last_subscribe_to_a_topic_counts(socket: WsClient, api: Api, topic: str) -> None:
    api.append(1, 2)
    socket.ask("subscribe", topic=topic, tail=True)
    socket.expect("caught_up")
    socket.ask("subscribe", topic=topic, from_seq=1)
    assert _data(socket.expect("record")) == [2]
    socket.expect("caught_up")
    api.append(3)
    assert _data(socket.expect("record")) == [3]
    socket.expect("caught_up")
    assert socket.ask("ping")["op"] == "pong"


def test_unsubscribing_ends_it(socket: WsClient, api: Api, topic: str) -> None:
    api.append(1)
    socket.ask("subscribe", topic=topic, tail=True)
    socket.expect("caught_up")
    message = socket.ask("unsubscribe", topics=[topic, "never-followed"], request_id=1)
    assert message == {"op": "unsubscribed", "request_id": 1, "topics": [topic]}
    api.append(2)
    assert socket.ask("unsubscribe", topic=topic) == {"op": "unsubscribed", "topics": []}
    assert socket.ask("ping", request_id="still here") == {"op": "pong", "request_id": "still here"}


def test_lost_records_are_reported_with_the_next_seq(socket: WsClient, api: Api, topic: str) -> None:
    api.put(cap_records=2)
    api.append(1, 2, 3, 4)
    socket.ask("subscribe", topic=topic, from_seq=1)
    message = socket.read()
    assert message == {
        "op": "tombstone",
        "topic": topic,
        "reason": "cap",
        "gap_from": 2,
        "gap_to": 2,
        "earliest_seq": 3,
        "head_seq": 4,
        "epoch": message["epoch"],
        "to_seq": 2,
    }
    assert _data(socket.expect("record", from_seq=2, to_seq=4)) == [3, 4]


def test_a_deleted_topic_is_reported_and_others_continue(socket: WsClient, api: Api, topic: str) -> None:
    other = Api(api.client, topic + "-other")
    api.append(1)
    other.append(1)
    socket.ask("subscribe", topics=[topic, other.topic], tail=True)
    for _ in range(2):
        socket.expect("caught_up")
    api.call("DELETE")
    assert socket.read() == {"op": "topic_deleted", "topic": topic, "head_seq": 1, "reason": "deleted"}
    other.append(2)
    socket.expect("record", topic=other.topic)
    socket.expect("caught_up")
    api.append("anew")
    socket.ask("subscribe", topic=topic, from_seq=1, epoch=1 << 40)
    assert socket.expect("tombstone")["reason"] == "recreated"
    assert _data(socket.expect("record")) == ["anew"]


def test_a_subscription_takes_either_name(socket: WsClient, api: Api) -> None:
    api.append(1, 2, 3)
    for fields in ({"topic": api.topic, "after_seq": 2}, {"topics": {api.topic: {"after_seq": 2}}}):
        socket.ask("subscribe", **fields)
        assert [one["data"] for one in socket.expect("record")["records"]] == [3]
        socket.expect("caught_up")
    assert socket.ask("subscribe", topic=api.topic, after_seq=2, from_seq=1)["message"] == (
        "after_seq: must equal from_seq, which is its other name, got 2 and 1; send one of them"
    )


def test_a_position_past_the_head_refuses_the_subscribe(api: Api, socket: WsClient) -> None:
    api.append(1, 2)
    epoch = api.state()["epoch"]
    socket.say("subscribe", topics={api.topic: {"from_seq": 3, "epoch": epoch}}, request_id="s")
    message = socket.expect("error", request_id="s", code="position_past_head")
    assert message["detail"] == {"topic": api.topic, "head_seq": 2, "epoch": epoch}
    api.append(3)
    assert socket.ask("ping") == {"op": "pong"}


def test_a_position_past_the_head_without_an_epoch_is_of_another_incarnation(
    api: Api, socket: WsClient
) -> None:
    api.append(1, 2)
    socket.ask("subscribe", topic=api.topic, from_seq=3)
    assert socket.expect("tombstone")["reason"] == "recreated"
    assert _data(socket.expect("record")) == [1, 2]


# -- what is refused ---------------------------------------------------------------------------------------


REFUSED: list[tuple[bytes, str, str]] = [
    (b"", "invalid_request", "empty"),
    (b"{", "invalid_request", "JSON"),
    (b"[]", "invalid_request", "object"),
    (b"{}", "invalid_request", "op"),
    (b'{"op":"bark"}', "invalid_request", "subscribe"),
    (b'{"op":7}', "invalid_request", "op"),
    (b'{"op":"ping","request_id":{}}', "invalid_request", "request_id"),
    (b'{"op":"ping","request_id":"%b"}' % (b"x" * 300), "invalid_request", "request_id"),
    (b'{"op":"ping","x":' + b"[" * 5000 + b"]" * 5000 + b"}", "invalid_request", "deep"),
    (b'{"op":"subscribe"}', "invalid_request", "topics"),
    (b'{"op":"subscribe","topics":[]}', "invalid_request", "topics"),
    (b'{"op":"subscribe","topics":7}', "invalid_request", "topics"),
    (b'{"op":"subscribe","topic":"a","topics":["a"]}', "invalid_request", "topics"),
    (b'{"op":"subscribe","topic":"a","topics":{"a":{}}}', "invalid_request", "topics"),
    (b'{"op":"subscribe","topic":"a b"}', "invalid_request", "topic"),
    (b'{"op":"subscribe","topic":""}', "invalid_request", "topic"),
    (b'{"op":"subscribe","topic":"\\ud800"}', "invalid_request", ""),
    (b'{"op":"publish","topic":"\\ud800","records":[{"data":1}]}', "invalid_request", ""),
    (b'{"op":"subscribe","topic":"never-created"}', "topic_not_found", "never-created"),
    (b'{"op":"subscribe","topic":"a","from_seq":-1}', "invalid_request", "from_seq"),
    (b'{"op":"subscribe","topic":"a","from_seq":1.5}', "invalid_request", "from_seq"),
    (b'{"op":"subscribe","topic":"a","from_seq":1,"tail":true}', "invalid_request", "tail"),
    (b'{"op":"subscribe","topics":{"a":{"from_seq":"1"}}}', "invalid_request", "from_seq"),
    (b'{"op":"subscribe","topic":"a","epoch":-1}', "invalid_request", "epoch"),
    (b'{"op":"subscribe","topic":"a","limit":-1}', "invalid_request", "limit"),
    (b'{"op":"subscribe","topic":"a","max_batch_bytes":-1}', "invalid_request", "max_batch_bytes"),
    (b'{"op":"subscribe","topic":"a","node":"\\u0000"}', "invalid_request", "node"),
    (b'{"op":"subscribe","topic":"a","node":"%b"}' % (b"x" * 200), "invalid_request", "node"),
    (b'{"op":"subscribe","topic":"a","consistency":"total"}', "invalid_request", "eventual"),
    (b'{"op":"unsubscribe"}', "invalid_request", "topics"),
    (b'{"op":"publish","records":[{"data":1}]}', "invalid_request", "topic"),
    (b'{"op":"publish","topic":"a"}', "invalid_request", "records"),
    (b'{"op":"publish","topic":"a","records":[{}]}', "invalid_request", "data"),
    (b'{"op":"publish","topic":"a b","records":[{"data":1}]}', "invalid_request", "topic"),
    (
        b'{"op":"publish","topic":"a","records":[{"data":1}],"return_seqs":1}',
        "invalid_request",
        "return_seqs",
    ),
    (b'{"op":"publish","topic":"a","records":[{"data":NaN}]}', "invalid_request", "JSON"),
]


@pytest.mark.parametrize(("message", "code", "word"), REFUSED)
def test_what_is_wrong_is_said_and_the_connection_lives_on(
    socket: WsClient, message: bytes, code: str, word: str
) -> None:
    socket.say_raw(message)
    error = socket.expect("error", code=code)
    assert word in error["message"]
    assert "request_id" not in error
    assert socket.ask("ping", request_id=None) == {"op": "pong"}


@pytest.mark.parametrize("request_id", ["text", 'a "quoted" one', 7, -1, 0, 2.5, "", "é"])
def test_every_answer_repeats_the_id_of_its_request(socket: WsClient, request_id: object) -> None:
    for kind, fields in {
        "ping": {},
        "bark": {},
        "subscribe": {"topic": 7},
        "unsubscribe": {"topics": {}},
        "publish": {"topic": "a", "records": 7},
    }.items():
        assert socket.ask(kind, request_id=request_id, **fields)["request_id"] == request_id


def test_topics_beyond_the_bound_are_refused(tmp_path: Any) -> None:
    with HttpServer(tmp_path, max_watch_topics=3) as server, WsClient(server.ports["fast"]) as socket:
        for name in "abcd":
            socket.ask("publish", topic=name, records=_records(1))
        message = socket.ask("subscribe", topics=list("abcd"), request_id=1)
        assert (message["code"], message["detail"]["max"]) == ("invalid_request", 3)
        assert socket.ask("subscribe", topics=list("ab"), tail=True)["op"] == "subscribed"
        for _ in range(2):
            socket.expect("caught_up")
        assert socket.ask("subscribe", topics=["c", "d"], tail=True)["op"] == "error"
        assert socket.ask("subscribe", topics=["b", "c"], tail=True)["op"] == "subscribed"


# -- keys --------------------------------------------------------------------------------------------------

READER, WRITER, ADMIN = "key-of-a-reader-of-orders", "key-of-a-writer-of-orders", "key-of-an-administrator"
KEYS = f"{READER}:r:orders.,{WRITER}:w:orders.,{ADMIN}"


def test_each_operation_asks_the_key(tmp_path: Any) -> None:
    def allowed(socket: WsClient, kind: str, **fields: Any) -> bool:
        message = socket.ask(kind, **fields)
        assert message["op"] != "error" or message["code"] == "forbidden"
        return bool(message["op"] != "error")

    with HttpServer(tmp_path, keys=KEYS) as server:
        port = server.ports["fast"]
        for fields in ((), ("authorization: Bearer a-stranger-to-us",)):
            with RawClient(port) as client:
                client.send(upgrade_request("/v0/ws", *fields))
                assert client.read_answer().status == 401
        publish = {"topic": "orders.a", "records": _records(1)}
        with WsClient(port, f"authorization: Bearer {WRITER}") as socket:
            assert allowed(socket, "publish", **publish)
            assert not allowed(socket, "publish", **publish, config={})
            assert not allowed(socket, "publish", topic="private", records=_records(1))
            assert not allowed(socket, "subscribe", topic="orders.a")
        with WsClient(port, f"authorization: Bearer {READER}") as socket:
            assert not allowed(socket, "publish", **publish)
            assert not allowed(socket, "subscribe", topic="private")
            assert not allowed(socket, "subscribe", topics=["orders.a", "private"])
            assert allowed(socket, "subscribe", topic="orders.a", tail=True)
        with WsClient(port, f"authorization: Bearer {ADMIN}") as socket:
            assert allowed(socket, "publish", **publish, config={})


def test_a_key_that_is_taken_back_ends_its_sockets(tmp_path: Any) -> None:
    with HttpServer(tmp_path, keys=KEYS) as server:
        fields = [f"authorization: Bearer {ADMIN}"]
        with (
            WsClient(server.ports["fast"], *fields) as socket,
            WsClient(server.ports["coded"], *fields) as other,
        ):
            socket.ask("publish", topic="a", records=_records(1))
            server.pass_timeout(0)
            assert other.ask("ping") == {"op": "pong"}
            server.change_keys(f"{READER}:r")
            server.pass_timeout(0)
            for one in (socket, other):
                one.expect("error", code="unauthorized")
                one.expect_close(1008)
