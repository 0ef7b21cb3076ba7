"""What the API says of a topic after the shard was closed and opened again: the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.http_server import HttpServer

RECORDS = [
    b'{"data":{"b":1,"a":2,"b":3},"tag":"t.1","node":"n","meta":{"k":1.0}}',
    b'{"data":1e400,"tag":"t.2"}',
    b'{"data":18446744073709551616}',
    '{"data":"é\\u0000","tag":"Ω"}'.encode(),
    b'{"data":null,"meta":{}}',
]


def _fill(api: Api) -> None:
    body = b'{"records":[%b],"idempotency_key":"k"}' % b",".join(RECORDS)
    assert api.call("POST", "", body).status in (200, 201)


def _timeless(answer: Any) -> Any:
    changing = ("performance", "last_read_ts", "durable_seq")
    return {name: value for name, value in answer.items() if name not in changing}


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_everything_is_said_as_before(
    tmp_path_factory: pytest.TempPathFactory, lane: str, durability: str
) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server:
        answers: list[Any] = []
        for _ in range(2):
            with server.connect(lane) as client:
                api = Api(client, "t")
                if not answers:
                    api.put(durability=durability, cap_records=9, priority=7)
                    _fill(api)
                    api.append(*range(8))
                    api.delete(before_seq=6)
                    api.delete(match="t.2")
                body = api.call("POST", "/diff", {"include_tags": True}).body
                answers.append(
                    (_timeless(api.state()), _timeless(api.diff()), body.partition(b',"performance"')[0])
                )
            server.restart()
        assert answers[0] == answers[1]
        assert answers[0][1]["tombstone"]["reason"] == "cap"


def test_data_and_keys_are_there_as_before(tmp_path_factory: pytest.TempPathFactory, lane: str) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server:
        with server.connect(lane) as client:
            api = Api(client, "t")
            _fill(api)
            before = api.call("POST", "/diff", {"include_tags": True}).body
            epoch = api.state()["epoch"]
        server.restart()
        with server.connect(lane) as client:
            api = Api(client, "t")
            after = api.call("POST", "/diff", {"include_tags": True}).body
            assert after.partition(b',"performance"')[0] == before.partition(b',"performance"')[0]
            assert api.state()["epoch"] == epoch
            again = {"records": [{"data": 1}], "idempotency_key": "k"}
            api.refused(409, "idempotency_mismatch", "POST", "", again)
            repeated = b'{"records":[%b],"idempotency_key":"k"}' % b",".join(RECORDS)
            assert api.call("POST", "", repeated).json["deduped"] is True
            assert api.append("next")["first_seq"] == 6


def test_a_deleted_topic_stays_deleted(tmp_path_factory: pytest.TempPathFactory, lane: str) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server:
        with server.connect(lane) as client:
            api = Api(client, "t")
            _fill(api)
            epoch = api.state()["epoch"]
            api.call("DELETE")
        server.restart()
        with server.connect(lane) as client:
            api = Api(client, "t")
            api.refused(404, "topic_not_found", "GET")
            assert api.append(1)["first_seq"] == 1
            assert api.diff(0, epoch=epoch)["tombstone"]["reason"] == "recreated"


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_position_past_the_head_stays_past_it(
    tmp_path_factory: pytest.TempPathFactory, lane: str, durability: str
) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server:
        with server.connect(lane) as client:
            api = Api(client, "t")
            api.put(durability=durability)
            api.append(1, 2)
            epoch = api.state()["epoch"]
        server.restart()
        with server.connect(lane) as client:
            api = Api(client, "t")
            state = api.state()
            assert (state["epoch"], state["head_seq"] >= 2) == (epoch, True)
            place = {"from_seq": state["head_seq"] + 1, "epoch": epoch}
            api.refused(409, "position_past_head", "POST", "/diff", place)
            assert api.diff(2, epoch=epoch)["tombstone"] is None or durability == "ephemeral"
