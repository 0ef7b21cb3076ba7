"""An answer names the value that was used where a number was clamped to its bound, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer


def _clamped(api: Api, method: str, rest: str, body: dict[str, Any]) -> Any:
    answer = api.call(method, rest, body)
    assert answer.status in (200, 201), answer
    return answer.json.get("clamped")


@pytest.mark.parametrize(
    ("body", "clamped"),
    [
        ({"limit": 5000}, {"limit": 1000}),
        ({"limit": 1000, "wait_ms": 30_000}, None),
        ({"limit": 0, "wait_ms": 60_000}, {"wait_ms": 30_000}),
        ({"limit": 1001, "wait_ms": 30_001}, {"limit": 1000, "wait_ms": 30_000}),
        ({}, None),
    ],
)
def test_a_read_names_its_limit_and_its_wait(api: Api, body: dict[str, Any], clamped: Any) -> None:
    api.append(1)
    answer = api.diff(**body)
    assert answer.get("clamped") == clamped
    assert [one["data"] for one in answer["records"]] == [1]


def test_a_read_that_waited_names_them_too(server: HttpServer, api: Api) -> None:
    api.append(1)
    request = api.client.start("POST", f"{api.path}/diff", b'{"from_seq":1,"limit":5000,"wait_ms":50}')
    answer = api.client.finish(request)
    assert (answer.json["records"], answer.json["clamped"]) == ([], {"limit": 1000})


@pytest.mark.parametrize(
    ("config", "clamped"),
    [
        ({"priority": 5000, "lease_ms": 10}, {"priority": 1000, "lease_ms": 100}),
        ({"priority": -1001, "claim_jitter_ms": 9000}, {"priority": -1000, "claim_jitter_ms": 5000}),
        ({"priority": 1000, "lease_ms": 100}, None),
        ({"priority": None}, None),
    ],
)
def test_a_configuration_names_what_it_stores_instead(api: Api, config: dict[str, Any], clamped: Any) -> None:
    assert _clamped(api, "PUT", "", {"type": "queue", **config}) == clamped


def test_an_append_that_creates_names_it_as_well(api: Api) -> None:
    body = {"records": [{"data": 1}], "config": {"priority": 5000}}
    assert _clamped(api, "POST", "", body) == {"config.priority": 1000}
    # The topic exists, and nothing of the configuration is used.
    assert _clamped(api, "POST", "", body) is None


def test_leases_and_delays(api: Api) -> None:
    api.append(1, 2, 3, config={"type": "queue"})
    claim = {"node": "w", "max": 5000, "lease_ms": 1}
    assert _clamped(api, "POST", "/claim", claim) == {"max": 1000, "lease_ms": 100}
    lease = {"node": "w", "seqs": [1]}
    assert _clamped(api, "POST", "/extend", {**lease, "lease_ms": 10**9}) == {"lease_ms": 86_400_000}
    assert _clamped(api, "POST", "/nack", {**lease, "delay_ms": 10**9}) == {"delay_ms": 86_400_000}
    assert _clamped(api, "POST", "/ack", {"node": "w", "seqs": [2]}) is None


@pytest.mark.parametrize(("query", "comments"), [("max=5000&lease_ms=1", 1), ("max=1000&lease_ms=100", 0)])
def test_a_stream_of_jobs_begins_with_a_comment(
    server: HttpServer, api: Api, query: str, comments: int
) -> None:
    api.put(type="queue")
    with EventClient(server.ports["fast"], f"{api.path}/work?node=w&{query}").begin() as client:
        api.append(1)
        assert client.next().name == "job"
        assert client.comments == comments


def test_a_redrive(api: Api) -> None:
    api.append(1)
    assert _clamped(api, "POST", "/redrive", {"max": 20_000, "dry_run": True}) == {"max": 10_000}


def test_a_watch_session_and_a_subscription(server: HttpServer, api: Api) -> None:
    api.append(1)
    too_large = {"limit": 5000, "max_batch_bytes": 1 << 30}
    clamped = {"limit": 1000, "max_batch_bytes": 8 << 20}
    body = {"topics": {api.topic: {}}, **too_large}
    assert api.client.ask("POST", "/v0/watch", body).json["clamped"] == clamped
    with WsClient(server.ports["fast"]) as socket:
        assert socket.ask("subscribe", topic=api.topic, tail=True, **too_large)["clamped"] == clamped
        assert "clamped" not in socket.ask("subscribe", topic=api.topic, tail=True)


def test_jobs_that_are_skipped_have_a_reason(api: Api) -> None:
    api.append(*range(6), config={"type": "queue"})
    api.call("POST", "/claim", {"node": "w", "max": 3})
    api.call("POST", "/claim", {"node": "v", "max": 1})
    api.call("POST", "/ack", {"node": "w", "seqs": [1]})
    answer = api.call("POST", "/ack", {"node": "w", "seqs": [1, 2, 2, 4, 5, 77]})
    assert (answer.json["acked"], answer.json["skipped"]) == (1, [1, 2, 4, 5, 77])
    assert answer.json["skipped_reasons"] == {
        "1": "acked",
        "2": "repeated",
        "4": "other_node",
        "5": "ready",
        "77": "not_written",
    }
    answer = api.call(
        "POST", "/extend", {"node": "w", "seqs": [3], "lease_ms": 1000, "lease_ids": ["lease_f"]}
    )
    assert answer.json["skipped_reasons"] == {"3": "other_lease"}
    assert "skipped_reasons" not in api.call("POST", "/ack", {"node": "w", "seqs": [3]}).json
