"""Named cursors: `/v0/topics/:topic/cursors` and what is kept there."""

from __future__ import annotations

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer


def test_a_cursor_is_put_and_says_how_far_behind_it_is(api: Api) -> None:
    api.append(1, 2, 3)
    made = api.call("PUT", "/cursors/c.1", {"from_seq": 1})
    names = ["topic", "cursor", "from_seq", "set_ts", "created", "performance"]
    assert (made.status, list(made.json)) == (201, names)
    answer = api.call("GET", "/cursors/c.1").json
    assert (answer["topic"], answer["cursor"]) == (api.topic, "c.1")
    assert (answer["from_seq"], answer["head_seq"]) == (1, 3)
    assert (answer["lag_records"], answer["lag_bytes"]) == (2, api.state()["bytes"] // 3 * 2)
    assert (answer["epoch"], answer["lag_ms"] >= 0) == (api.state()["epoch"], True)
    again = api.call("PUT", "/cursors/c.1", {"from_seq": 3, "epoch": answer["epoch"]})
    assert (again.status, again.json["created"]) == (200, False)
    answer = api.call("GET", "/cursors/c.1").json
    assert (answer["lag_records"], answer["lag_bytes"], answer["lag_ms"]) == (0, 0, 0)


def test_cursors_are_listed_by_name(api: Api) -> None:
    api.append(1, 2, 3)
    assert api.call("GET", "/cursors").json["cursors"] == []
    for name, seq in (("b", 2), ("a", 0)):
        api.call("PUT", f"/cursors/{name}", {"from_seq": seq})
    answer = api.call("GET", "/cursors").json
    rows = [(one["cursor"], one["from_seq"], one["lag_records"]) for one in answer["cursors"]]
    assert (rows, answer["head_seq"]) == ([("a", 0, 3), ("b", 2, 1)], 3)


def test_a_cursor_is_deleted_once(api: Api) -> None:
    api.append(1)
    api.call("PUT", "/cursors/c", {"from_seq": 1})
    assert [api.call("DELETE", "/cursors/c").json["deleted"] for _ in range(2)] == [True, False]
    api.refused(404, "not_found", "GET", "/cursors/c")


def test_what_is_not_there_is_404(api: Api) -> None:
    for method, rest, body in (
        ("PUT", "/cursors/c", {"from_seq": 0}),
        ("GET", "/cursors/c", None),
        ("DELETE", "/cursors/c", None),
        ("GET", "/cursors", None),
    ):
        api.refused(404, "topic_not_found", method, rest, body)
    api.append(1)
    for rest in ("/cursors/", "/cursors/a/b", "/cursors/:", "/delete/c"):
        assert api.call("GET", rest).status in (404, 405), rest


@pytest.mark.parametrize(
    ("rest", "body", "field"),
    [
        ("/cursors/c", {}, "after_seq"),
        ("/cursors/c", None, "after_seq"),
        ("/cursors/c", {"from_seq": -1}, "from_seq"),
        ("/cursors/c", {"from_seq": 1.5}, "from_seq"),
        ("/cursors/c", {"from_seq": 1, "epoch": -1}, "epoch"),
        ("/cursors/a%20b", {"from_seq": 1}, "cursor"),
        ("/cursors/a%2Fb", {"from_seq": 1}, "cursor"),
    ],
)
def test_what_is_wrong_is_named(api: Api, rest: str, body: object, field: str) -> None:
    api.append(1)
    answer = api.refused(400, "invalid_request", "PUT", rest, body)
    assert field in answer.json["error"]["message"]


def test_a_place_that_the_topic_does_not_have_is_refused_with_its_head(api: Api) -> None:
    api.append(1)
    epoch = api.state()["epoch"]
    for body in ({"from_seq": 2}, {"from_seq": 1, "epoch": epoch + 1}):
        answer = api.refused(409, "head_mismatch", "PUT", "/cursors/c", body)
        assert answer.json["error"]["detail"] == {"head_seq": 1, "epoch": epoch}
    answer = api.refused(409, "head_mismatch", "PUT", "/cursors/c", {"after_seq": 2})
    assert answer.message == "after_seq: must be at most 1, the head of the topic, got 2"


def test_another_method_is_405_with_those_that_there_are(api: Api) -> None:
    api.append(1)
    answer = api.call("POST", "/cursors/c", {"from_seq": 1})
    assert (answer.status, answer.json["error"]["detail"]["allow"]) == (405, "DELETE, GET, HEAD, PUT")


def test_protect_cursors_is_part_of_the_configuration(api: Api) -> None:
    assert api.put(cap_records=2, protect_cursors=True)["config"]["protect_cursors"] is True
    api.append(1, 2)
    api.call("PUT", "/cursors/c", {"from_seq": 0})
    api.append(3, 4)
    assert api.seqs() == [1, 2, 3, 4]
    api.append(5)
    assert api.seqs() == [2, 3, 4, 5]
    api.call("PUT", "/cursors/c", {"from_seq": 5})
    assert api.seqs() == [4, 5]


@pytest.mark.slow
def test_whichever_shard_a_topic_is_of(tmp_path_factory: pytest.TempPathFactory) -> None:
    with WholeServer(tmp_path_factory.mktemp("data"), shards=2) as server, RawClient(server.port) as client:
        for name in (server.topic_of(shard, "t") for shard in range(2)):
            client.ask("POST", f"/v0/topics/{name}", b'{"records":[{"data":1}]}')
            path = f"/v0/topics/{name}/cursors/c"
            assert client.ask("PUT", path, b'{"from_seq":0}').status == 201
            assert client.ask("GET", path).json["lag_records"] == 1
        lines = client.ask("GET", "/v0/metrics").body.decode().splitlines()
        for name in (server.topic_of(shard, "t") for shard in range(2)):
            for series, value in (("records", "1"), ("bytes", "47")):
                line = f'topics_cursor_lag_{series}{{topic="{name}",cursor="c"}} {value}'
                assert line in lines
            assert any(line.startswith(f'topics_cursor_lag_seconds{{topic="{name}",') for line in lines)
            assert client.ask("DELETE", f"/v0/topics/{name}/cursors/c").json["deleted"] is True
        assert "topics_cursor_metrics_truncated 0" in lines
        listed = client.ask("GET", "/v0/topics").json["topics"]
        assert not any("cursors" in one for one in listed)
