"""Jobs: `POST /v0/topics/:topic/claim`, `ack`, `nack`, `extend`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.http_server import HttpServer
from tests.harness.server.whole_server import WholeServer


def ask(api: Api, verb: str, **body: Any) -> Any:
    answer = api.call("POST", f"/{verb}", body)
    assert answer.status == 200, answer
    return answer.json


def test_a_job_is_claimed_and_acked(api: Api) -> None:
    assert api.put(type="queue")["config"]["type"] == "queue"
    api.append_raw(b'{"data":{"b":1.0,"a":1e400},"tag":"t","meta":{"k":1}}')
    api.append(2)
    claim = ask(api, "claim", node="w", max=1)
    assert (claim["count"], claim["ready"], claim["topic"]) == (1, 1, api.topic)
    (job,) = claim["claimed"]
    assert set(job) == {"$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"}
    assert (job["$seq"], job["deliveries"], job["$tag"], job["meta"]) == (1, 1, "t", {"k": 1})
    state = api.state()
    assert state["type"] == "queue"
    assert {**state["queue"], "oldest_ready_ms": 0} == {
        "ready": 1,
        "in_flight": 1,
        "dead_lettered": 0,
        "oldest_ready_ms": 0,
    }
    done = ask(api, "ack", node="w", seqs=[1, 2], lease_ids=[job["lease_id"], "lease_1"])
    assert (done["acked"], done["skipped"], done["ready"], done["in_flight"]) == (1, [2], 1, 0)
    assert api.seqs() == [2]


def test_data_comes_byte_for_byte(api: Api) -> None:
    api.put(type="queue")
    api.append_raw(b'{"data":{"b":1.0,"a":1e400,"a":18446744073709551616}}')
    answer = api.call("POST", "/claim", {"node": "w"})
    assert b'"data":{"b":1.0,"a":1e400,"a":18446744073709551616}' in answer.body


def test_a_nack_gives_it_back_and_an_extend_keeps_it(api: Api) -> None:
    api.append(1, 2, config={"type": "queue", "lease_ms": 60_000})
    first = ask(api, "claim", node="w", max=2)["claimed"][0]
    back = ask(api, "nack", node="w", seqs=[2], delay_ms=60_000)
    assert (back["nacked"], back["skipped"], back["ready"], back["in_flight"]) == (1, [], 0, 1)
    assert api.state()["queue"]["delayed"] == 1
    assert ask(api, "nack", node="w", seqs=[1])["ready"] == 1
    again = ask(api, "claim", node="v", lease_ms=1)["claimed"][0]
    assert (again["$seq"], again["deliveries"]) == (1, 2)
    assert again["lease_id"] != first["lease_id"]
    longer = ask(api, "extend", node="v", seqs=[1, 2], lease_ms=3_600_000)
    assert (longer["extended"], longer["skipped"]) == (1, [2])
    assert longer["deadlines"]["1"] > again["deadline"]


def test_a_queue_is_read_like_a_log_and_leases_do_not_mind(api: Api) -> None:
    api.append(1, 2, config={"type": "queue"})
    ask(api, "claim", node="w")
    assert api.seqs() == [1, 2]
    assert api.delete(before_seq=2)["deleted"] == 1
    assert api.state()["queue"]["in_flight"] == 0
    assert ask(api, "ack", node="w", seqs=[1])["skipped"] == [1]


def test_a_type_never_changes(api: Api) -> None:
    api.put(type="queue")
    api.refused(409, "topic_exists_incompatible", "PUT", "", {"type": "log"})


@pytest.mark.parametrize("verb", ["claim", "ack", "nack", "extend"])
def test_what_has_no_jobs_says_so(api: Api, verb: str) -> None:
    body: dict[str, Any] = {"node": "w"} if verb == "claim" else {"node": "w", "seqs": [1]}
    if verb == "extend":
        body["lease_ms"] = 500
    api.refused(404, "topic_not_found", "POST", f"/{verb}", body)
    api.append(1)
    api.refused(409, "not_a_queue", "POST", f"/{verb}", body)


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("claim", {}, "invalid_request", "node"),
    ("claim", {"node": ""}, "invalid_request", "node"),
    ("claim", {"node": 1}, "invalid_request", "node"),
    ("claim", {"node": "n" * 129}, "invalid_request", "node"),
    ("claim", {"node": "w", "max": 0}, "invalid_request", "max"),
    ("claim", {"node": "w", "max": "1"}, "invalid_request", "max"),
    ("claim", {"node": "w", "lease_ms": -1}, "invalid_request", "lease_ms"),
    ("ack", {"node": "w"}, "invalid_request", "seqs"),
    ("ack", {"seqs": [1]}, "invalid_request", "node"),
    ("ack", {"node": "w", "seqs": list(range(1001))}, "batch_too_large", "seqs"),
    ("ack", {"node": "w", "seqs": [1], "lease_ids": []}, "invalid_request", "lease_ids"),
    ("ack", {"node": "w", "seqs": [1], "lease_ids": ["1"]}, "invalid_request", "lease_ids"),
    ("nack", {"node": "w", "seqs": [1], "delay_ms": -1}, "invalid_request", "delay_ms"),
    ("nack", {"node": "w", "seqs": [1], "reason": "r" * 1025}, "invalid_request", "reason"),
    ("extend", {"node": "w", "seqs": [1]}, "invalid_request", "lease_ms"),
    ("extend", {"node": "w", "seqs": [1], "lease_ms": -1}, "invalid_request", "lease_ms"),
]


@pytest.mark.parametrize(("verb", "body", "code", "field"), WRONG)
def test_a_refusal_names_the_field(api: Api, verb: str, body: dict[str, Any], code: str, field: str) -> None:
    api.put(type="queue")
    assert field in api.refused(400, code, "POST", f"/{verb}", body).message


def test_what_is_too_large_is_clamped(api: Api) -> None:
    api.append(1, config={"type": "queue"})
    job = ask(api, "claim", node="w", max=1 << 40, lease_ms=1 << 50)["claimed"][0]
    assert job["deadline"] - job["$ts"] < 86_500_000
    ask(api, "extend", node="w", seqs=[1], lease_ms=1 << 60)
    assert ask(api, "nack", node="w", seqs=[1], delay_ms=1 << 60)["nacked"] == 1


def test_a_client_that_went_away_in_the_time_of_its_claim_group_gets_no_job(
    server: HttpServer, api: Api, lane: str
) -> None:
    api.append(1, 2, config={"type": "queue", "claim_jitter_ms": 400})
    with server.connect(lane) as other:
        other.start("POST", f"{api.path}/claim", b'{"node":"gone","max":9}')
        time.sleep(0.1)
    assert [job["$seq"] for job in ask(api, "claim", node="w", max=9)["claimed"]] == [1, 2]


@pytest.mark.slow
def test_that_client_may_have_asked_on_a_connection_of_another_shard(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server, RawClient(server.port) as client:
        name, other = server.topic_of(0, "q"), server.topic_of(1, "other")
        client.ask_json("PUT", f"/v0/topics/{other}", {})
        client.ask_json("PUT", f"/v0/topics/{name}", {"type": "queue", "claim_jitter_ms": 400})
        client.ask_json("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
        with RawClient(server.port) as gone:
            assert gone.ask("GET", f"/v0/topics/{other}").status == 200
            gone.start("POST", f"/v0/topics/{name}/claim", b'{"node":"gone"}')
            time.sleep(0.1)
        jobs = client.ask_json("POST", f"/v0/topics/{name}/claim", {"node": "w"})["claimed"]
        assert [job["$seq"] for job in jobs] == [1]
