"""Jobs that are not handed out yet, and why: delays, the order of tags, pauses, `explain`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer


def ask(api: Api, verb: str, **body: Any) -> Any:
    answer = api.call("POST", f"/{verb}", body)
    assert answer.status == 200, answer
    return answer.json


def claimed(api: Api, **body: Any) -> list[int]:
    return [job["$seq"] for job in ask(api, "claim", node="w", **{"max": 100, **body})["claimed"]]


def explained(api: Api, seq: object) -> Any:
    answer = api.call("GET", f"/explain?seq={seq}")
    assert answer.status == 200, answer
    assert (answer.json["topic"], answer.json["seq"]) == (api.topic, seq)
    return answer.json


def queue_of(api: Api) -> Any:
    queue = dict(api.state()["queue"])
    queue.pop("oldest_ready_ms", None)
    return queue


def test_a_delayed_job_comes_when_it_is_due(api: Api) -> None:
    begun_ms = time.time_ns() // 1_000_000
    api.append(1, 2, config={"type": "queue"}, delay_ms=400)
    api.append(3)
    assert queue_of(api) == {"ready": 1, "in_flight": 0, "dead_lettered": 0, "delayed": 2}
    assert claimed(api) == [3]
    explanation = explained(api, 1)
    assert (explanation["state"], explanation["deliveries"], explanation["paused"]) == ("delayed", 0, False)
    assert begun_ms + 400 <= explanation["until"]
    while not (got := claimed(api)):
        assert time.time_ns() // 1_000_000 < begun_ms + 30_000
    assert got == [1, 2]
    assert time.time_ns() // 1_000_000 >= explanation["until"]


def test_a_returned_job_waits_for_the_back_off_of_its_queue(api: Api) -> None:
    retry = {"base_ms": 60_000, "factor": 3, "max_ms": "5m"}
    api.append(1, 2, config={"type": "queue", "retry": retry})
    assert api.put(retry=api.put()["config"]["retry"])["config"]["retry"] == {**retry, "max_ms": 300_000}
    assert claimed(api) == [1, 2]
    assert ask(api, "nack", node="w", seqs=[2], delay_ms=0)["nacked"] == 1
    assert claimed(api) == [2]
    before_ms = time.time_ns() // 1_000_000
    assert ask(api, "nack", node="w", seqs=[2])["nacked"] == 1
    assert before_ms + 180_000 <= explained(api, 2)["until"] < before_ms + 240_000
    assert api.put(retry=None)["config"]["retry"] is None
    assert ask(api, "nack", node="w", seqs=[1])["nacked"] == 1
    assert claimed(api) == [1]


@pytest.mark.parametrize(
    ("retry", "message"),
    [
        ({}, "retry.base_ms: is required"),
        ({"base_ms": 0}, "retry.base_ms: must be from 1 to 86400000, got 0"),
        ({"base_ms": "25h"}, "retry.base_ms: must be from 1 to 86400000, got 90000000"),
        ({"base_ms": "1"}, 'retry.base_ms: "1" has no unit'),
        ({"base_ms": 9, "factor": 0.5}, "retry.factor: must be from 1 to 1000, got 0.5"),
        ({"base_ms": 9, "factor": 1001}, "retry.factor: must be from 1 to 1000, got 1001"),
        ({"base_ms": 9, "factor": "2"}, "retry.factor: must be a number"),
        (
            {"base_ms": 9, "max_ms": 8},
            "retry.max_ms: must be from retry.base_ms, which is 9, to 86400000, got 8",
        ),
        ({"base_ms": 9, "max": 8}, "retry.max: unknown field, did you mean max_ms?"),
        (5000, "retry: must be an object or null"),
    ],
)
def test_a_back_off_that_cannot_be_is_refused(api: Api, retry: object, message: str) -> None:
    body = {"type": "queue", "retry": retry}
    assert message in api.refused(400, "invalid_request", "PUT", "", body).message


def test_a_log_has_no_back_off(api: Api) -> None:
    api.put()
    refused = api.refused(400, "invalid_request", "PUT", "", {"retry": {"base_ms": 1}})
    assert refused.message.startswith("retry: only queues have it")


def test_tags_take_turns_in_a_fair_queue(api: Api) -> None:
    tags = ["a", "a", "a", "b", "b", None]
    records = [{"data": 1, **({"tag": tag} if tag else {})} for tag in tags]
    body = {"records": records, "config": {"type": "queue", "fair_by": "tag"}}
    assert api.call("POST", "", body).status == 201
    assert claimed(api, max=4) == [1, 4, 6, 2]
    assert claimed(api) == [5, 3]
    refused = api.refused(409, "topic_exists_incompatible", "PUT", "", {"fair_by": None})
    assert refused.json["error"]["detail"] == {"field": "fair_by"}
    assert "fair_by: must be" in api.refused(400, "invalid_request", "PUT", "", {"fair_by": "node"}).message


def test_jobs_with_a_priority_are_claimed_first(api: Api) -> None:
    api.append(1, config={"type": "queue"})
    for priority in (0, 3, 9):
        api.append(priority, priority=priority)
    assert (explained(api, 3)["priority"], "priority" in explained(api, 2)) == (3, False)
    assert claimed(api) == [4, 3, 1, 2]


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        (-1, "priority: must be from 0 to 9, got -1"),
        (10, "priority: must be from 0 to 9, got 10"),
        ("high", "priority: must be an integer from 0 to 9 or null, got a string"),
        (1.5, "priority: must be an integer from 0 to 9 or null, got a number with a fraction"),
    ],
)
def test_a_priority_that_cannot_be_is_refused(api: Api, priority: object, message: str) -> None:
    api.put(type="queue")
    body = {"records": [{"data": 1}], "priority": priority}
    assert api.refused(400, "invalid_request", "POST", "", body).message == message


def test_a_record_of_a_log_has_no_priority(api: Api) -> None:
    api.put()
    body = {"records": [{"data": 1}], "priority": 0}
    assert api.refused(400, "invalid_request", "POST", "", body).message.startswith("priority: only queues")


def test_a_job_may_have_an_earliest_time(api: Api) -> None:
    api.put(type="queue")
    api.append(1, not_before="-1s")
    until = time.time_ns() // 1_000_000 + 3_600_000
    api.append(2, not_before=until)
    assert explained(api, 2)["until"] == until
    assert claimed(api) == [1]
    assert api.seqs() == [1, 2]


def test_a_delayed_job_is_cancelled_by_its_seq_or_its_tag(api: Api) -> None:
    api.put(type="queue")
    records = [{"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}, {"data": 3}]
    assert api.call("POST", "", {"records": records, "delay_ms": 60_000}).status == 200
    assert api.delete(match="a")["deleted"] == 1
    assert api.delete(seqs=[3, 99])["deleted"] == 1
    assert queue_of(api) == {"ready": 0, "in_flight": 0, "dead_lettered": 0, "delayed": 1}
    assert explained(api, 3)["state"] == "deleted"
    assert api.seqs() == [2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"delay_ms": -1}, "delay_ms: must be from 0 to 31622400000"),
        ({"delay_ms": 31_622_400_001}, "delay_ms: must be from 0 to 31622400000"),
        ({"delay_ms": "1"}, 'delay_ms: "1" has no unit'),
        ({"delay_ms": "soon"}, "delay_ms: must be a number of milliseconds or a duration"),
        ({"delay_ms": "2000d"}, "delay_ms: must be from 0 to 31622400000"),
        ({"not_before": "tomorrow"}, "not_before: must be milliseconds, RFC 3339 ("),
        (
            {"not_before": 1_795_037_271},
            "not_before: 1795037271 looks like seconds; send milliseconds: 1795037271000",
        ),
        ({"not_before": -1}, "not_before: must be "),
        ({"not_before": 1 << 60}, "not_before: must be "),
        ({"delay_ms": 1, "not_before": 1}, "not_before: must not be sent with delay_ms"),
    ],
)
def test_a_delay_that_cannot_be_names_the_field(api: Api, body: dict[str, object], message: str) -> None:
    api.put(type="queue")
    answer = api.refused(400, "invalid_request", "POST", "", {"records": [{"data": 1}], **body})
    assert answer.message.startswith(message)
    assert api.state()["head_seq"] == 0


def test_a_record_of_a_log_cannot_wait(api: Api) -> None:
    body = {"records": [{"data": 1}], "delay_ms": 5}
    assert "is a log" in api.refused(400, "invalid_request", "POST", "", body).message
    api.put()
    assert "delay_ms" in api.refused(400, "invalid_request", "POST", "", body).message


@pytest.mark.parametrize("more", [{"before_seq": 5}, {"match": "a"}])
def test_seqs_are_all_that_a_delete_by_them_names(api: Api, more: dict[str, object]) -> None:
    api.append(1)
    api.refused(400, "invalid_request", "POST", "/delete", {"seqs": [1], **more})
    answer = api.refused(400, "batch_too_large", "POST", "/delete", {"seqs": [1] * 1001})
    assert answer.message == "seqs: must have at most 1000 entries, got 1001"
    assert api.delete(seqs=[])["deleted"] == 0
    answer = api.refused(400, "invalid_request", "POST", "/delete", {"seqs": [1, -5]})
    assert answer.message == "seqs[1]: must be at least 0, got -5"
    assert api.delete(seqs=[1, 0, 1 << 40, 1])["deleted"] == 1


def test_one_job_of_a_tag_at_a_time(api: Api) -> None:
    assert api.put(type="queue", order_by="tag")["config"]["order_by"] == "tag"
    tags = ("a", "a", "b", None, "a")
    records = [{"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags]
    assert api.call("POST", "", {"records": records}).status == 200
    assert queue_of(api) == {"ready": 3, "in_flight": 0, "dead_lettered": 0, "blocked": 2}
    assert claimed(api) == [1, 3, 4]
    explanation = explained(api, 5)
    assert (explanation["state"], explanation["blocked_by"], explanation["deliveries"]) == ("blocked", 1, 0)
    assert claimed(api) == []
    ask(api, "nack", node="w", seqs=[1], reason="again")
    assert claimed(api) == [1]
    ask(api, "ack", node="w", seqs=[1, 3, 4])
    assert claimed(api) == [2]
    ask(api, "nack", node="w", seqs=[2], delay_ms=60_000)
    assert claimed(api) == []
    assert queue_of(api) == {"ready": 0, "in_flight": 0, "dead_lettered": 0, "delayed": 1, "blocked": 1}


def test_the_order_of_a_queue_is_given_when_it_is_made(api: Api) -> None:
    api.put(type="queue")
    answer = api.refused(409, "topic_exists_incompatible", "PUT", "", {"order_by": "tag"})
    assert "order_by" in answer.message
    answer = api.refused(400, "invalid_request", "PUT", "", {"order_by": "node"})
    assert "order_by" in answer.message


def test_a_paused_queue_hands_out_nothing(api: Api) -> None:
    api.append(1, 2, config={"type": "queue"})
    assert claimed(api, max=1) == [1]
    assert api.put(paused=True)["config"]["paused"] is True
    answer = ask(api, "claim", node="w")
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 1)
    assert (explained(api, 2)["state"], explained(api, 1)["state"]) == ("paused", "in_flight")
    assert ask(api, "ack", node="w", seqs=[1])["acked"] == 1
    api.put(paused=False)
    assert claimed(api) == [2]


def test_a_job_says_who_has_it_and_what_became_of_it(api: Api) -> None:
    api.append(1, config={"type": "queue", "max_deliveries": 1})
    assert explained(api, 1)["state"] == "ready"
    job = ask(api, "claim", node="worker-7")["claimed"][0]
    explanation = explained(api, 1)
    assert (explanation["state"], explanation["node"]) == ("in_flight", "worker-7")
    assert explanation["deadline"] == job["deadline"]
    ask(api, "nack", node="worker-7", seqs=[1], reason="no luck")
    assert claimed(api) == []
    explanation = explained(api, 1)
    assert (explanation["state"], explanation["dead_letter"], explanation["reason"]) == (
        "parked",
        None,
        "no luck",
    )
    assert (explained(api, 2)["state"], explained(api, 2)["head_seq"]) == ("not_written", 1)
    api.put(max_deliveries=2)
    assert claimed(api) == [1]
    ask(api, "ack", node="w", seqs=[1])
    assert explained(api, 1)["state"] == "acked"


@pytest.mark.parametrize("query", ["", "?seq=", "?seq=x", "?seq=-1", f"?seq={1 << 64}"])
def test_what_cannot_be_explained(api: Api, query: str) -> None:
    api.put(type="queue")
    assert "seq" in api.refused(400, "invalid_request", "GET", f"/explain{query}").message


def test_only_jobs_are_explained(api: Api) -> None:
    api.refused(404, "topic_not_found", "GET", "/explain?seq=1")
    api.append(1)
    api.refused(409, "not_a_queue", "GET", "/explain?seq=1")


@pytest.mark.slow
def test_the_age_of_the_oldest_job_is_reported_for_queues_of_all_shards(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with WholeServer(tmp_path_factory.mktemp("ages"), shards=2) as server, RawClient(server.port) as client:
        names = [server.topic_of(shard, "q") for shard in range(2)]
        for name in names:
            client.ask_json("PUT", f"/v0/topics/{name}", {"type": "queue"})
            client.ask_json("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
            client.ask_json("POST", f"/v0/topics/{name}", {"records": [{"data": 1}], "delay_ms": 60_000})
            assert client.ask_json("GET", f"/v0/topics/{name}/explain?seq=2")["state"] == "delayed"
        client.ask_json("POST", f"/v0/topics/{names[0]}/claim", {"node": "w"})
        client.ask_json("PUT", "/v0/topics/log", {})

        def ages(name: str = "topics_queue_oldest_ready_seconds") -> dict[str, float]:
            series = f"{name}{{topic="
            lines = client.ask("GET", "/v0/metrics").body.decode().splitlines()
            samples = [line.removeprefix(series).split("} ") for line in lines if line.startswith(series)]
            return {name.strip('"'): float(age) for name, age in samples}

        server.wait_for(lambda: ages()[names[1]] > 0, "a job grows older")
        assert set(ages()) == set(names)
        assert ages()[names[0]] == 0
        assert ages("topics_topic_queue_ready") == {names[0]: 0, names[1]: 1}
        assert ages("topics_topic_queue_in_flight") == {names[0]: 1, names[1]: 0}
        assert ages("topics_topic_records_live") == {names[0]: 2, names[1]: 2, "log": 0}
        assert ages("topics_topic_bytes_live")[names[0]] > 0
        expected = {"oldest_ready_seconds", "ready", "in_flight"}
        assert not any(expected & one.keys() for one in client.ask_json("GET", "/v0/topics")["topics"])


@pytest.mark.slow
def test_what_a_route_copies_into_a_queue_goes_in_the_order_of_its_tags(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with WholeServer(tmp_path_factory.mktemp("routes"), shards=1) as server, RawClient(server.port) as client:
        client.ask_json("PUT", "/v0/topics/steps", {"type": "queue", "order_by": "tag"})
        client.ask_json("PUT", "/v0/routers/r", {"source": "orders", "dest": "steps"})
        client.ask_json(
            "POST",
            "/v0/topics/orders",
            {"records": [{"data": 1, "tag": "a"}] * 2 + [{"data": 3, "tag": "b"}]},
        )
        server.wait_for(
            lambda: client.ask("GET", "/v0/topics/steps").json["head_seq"] == 3, "they are copied"
        )
        claimed = client.ask_json("POST", "/v0/topics/steps/claim", {"node": "w", "max": 9})["claimed"]
        assert [job["$seq"] for job in claimed] == [1, 3]
