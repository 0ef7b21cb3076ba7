"""Durations, sizes and times with units, wherever a request takes them; answers give integers."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.clients.event_client import EventClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.http_server import HttpServer

HOUR_MS = 3_600_000
GUESS = "1795037271 looks like seconds; send milliseconds: 1795037271000"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def seqs(answer: Any) -> list[int]:
    return [record["$seq"] for record in answer["records"]]


def test_a_read_waits_for_a_duration(api: Api) -> None:
    api.append(1)
    assert api.diff(1, wait_ms="30ms")["performance"]["server_total_ms"] >= 25
    for wrong, message in (
        ("soon", "must be a number of milliseconds or a duration"),
        ("5", '"5" has no unit'),
    ):
        answer = api.refused(400, "invalid_request", "POST", "/diff", {"wait_ms": wrong})
        assert answer.message.startswith(f"wait_ms: {message}")


@pytest.mark.parametrize("place", ["-1h", "-60.5 m", 0])
def test_a_read_begins_at_a_time(api: Api, place: object) -> None:
    api.append(1, 2)
    assert seqs(api.call("POST", "/diff", {"from_ts": place}).json) == [1, 2]
    assert api.call("GET", f"?from_ts={str(place).replace(' ', '%20')}").json["from_seq"] == 0


def test_a_read_begins_at_a_time_of_a_calendar(api: Api) -> None:
    api.append(1)
    stamp = api.diff()["records"][0]["$ts"]
    for shift, expected in ((0, [1]), (1, [])):
        at = datetime.fromtimestamp((stamp + shift) / 1000, UTC)
        text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert seqs(api.call("POST", "/diff", {"from_ts": text}).json) == expected
        assert api.call("GET", f"?from_ts={text}").json["from_seq"] == 1 - len(expected)
        # A plus sign that is not escaped.
        assert api.call("GET", f"?from_ts={text[:-1]}+00:00").json["from_seq"] == 1 - len(expected)


def test_seconds_are_refused_with_the_guess(api: Api) -> None:
    api.append(1)
    seconds = 1_795_037_271
    for method, rest, body in (
        ("POST", "/diff", {"from_ts": seconds}),
        ("GET", f"?from_ts={seconds}", None),
        ("POST", "/redrive", {"from_ts": seconds}),
    ):
        assert api.refused(400, "invalid_request", method, rest, body).message == f"from_ts: {GUESS}"
    message = api.refused(400, "invalid_request", "POST", "/redrive", {"to_ts": seconds}).message
    assert message == f"to_ts: {GUESS}"
    watch = {"topics": {api.topic: {"from_ts": seconds}}}
    answer = api.client.ask("POST", "/v0/watch", watch)
    assert (answer.status, answer.message) == (400, f"topics.{api.topic}.from_ts: {GUESS}")


def test_a_small_number_is_not_taken_for_seconds(api: Api) -> None:
    api.append(1)
    answer = api.refused(400, "invalid_request", "POST", "/diff", {"from_ts": 5})
    assert answer.message == "from_ts: 5 ms is in 1970"


def test_a_watch_takes_a_heartbeat_a_size_and_a_time(api: Api) -> None:
    api.append(1, 2)
    body: dict[str, Any] = {
        "topics": {api.topic: {"from_ts": "-1m"}},
        "heartbeat_ms": "20s",
        "max_batch_bytes": "64 KiB",
    }
    answer = api.client.ask("POST", "/v0/watch", body)
    assert answer.json["topics"][api.topic]["from_seq"] == 0
    for field, wrong, message in (
        ("heartbeat_ms", "2m", "heartbeat_ms: must be from 1000 to 60000"),
        ("heartbeat_ms", "often", "heartbeat_ms: must be a number of milliseconds"),
        ("max_batch_bytes", "big", "max_batch_bytes: must be a number of bytes or a size"),
    ):
        answer = api.client.ask("POST", "/v0/watch", {**body, field: wrong})
        assert answer.status == 400
        assert answer.message.startswith(message)


def test_leases_and_delays_are_durations(api: Api) -> None:
    api.put(type="queue")
    api.append(1, 2)
    claim = api.call("POST", "/claim", {"node": "w", "max": 2, "lease_ms": "1h"}).json
    assert 0 <= claim["claimed"][0]["deadline"] - now_ms() - HOUR_MS + 60_000 <= 60_000
    extended = api.call("POST", "/extend", {"node": "w", "seqs": [1], "lease_ms": "2h"}).json
    assert 0 <= extended["deadlines"]["1"] - now_ms() - 2 * HOUR_MS + 60_000 <= 60_000
    api.call("POST", "/nack", {"node": "w", "seqs": [2], "delay_ms": "1h"})
    assert 0 <= api.call("GET", "/explain?seq=2").json["until"] - now_ms() - HOUR_MS + 60_000 <= 60_000
    for rest, body in (
        ("/claim", {"node": "w", "lease_ms": "1"}),
        ("/extend", {"node": "w", "seqs": [1], "lease_ms": "1"}),
        ("/nack", {"node": "w", "seqs": [1], "delay_ms": "1"}),
    ):
        assert '"1" has no unit' in api.refused(400, "invalid_request", "POST", rest, body).message


def test_an_append_delays_its_jobs(api: Api) -> None:
    api.put(type="queue")
    api.append(1, delay_ms="1h")
    api.append(2, not_before="+1h")
    for seq in (1, 2):
        explanation = api.call("GET", f"/explain?seq={seq}").json
        assert explanation["state"] == "delayed"
        assert 0 <= explanation["until"] - now_ms() - HOUR_MS + 60_000 <= 60_000
    answer = api.refused(
        400, "invalid_request", "POST", "", {"records": [{"data": 1}], "not_before": 1_795_037_271}
    )
    assert answer.message == f"not_before: {GUESS}"


def test_a_config_in_an_append_takes_units(api: Api) -> None:
    api.append(1, config={"ttl_ms": "1d", "cap_bytes": "1 GiB"})
    config = api.state()["config"]
    assert (config["ttl_ms"], config["cap_bytes"]) == (86_400_000, 1 << 30)


def test_a_stream_of_jobs_takes_a_duration(server: HttpServer, api: Api) -> None:
    api.put(type="queue")
    api.append(1)
    for lease in ("3600000", "1h"):
        with EventClient(server.ports["fast"], f"{api.path}/work?node=w&lease_ms={lease}").begin() as events:
            deadline = events.next().data["deadline"]
            assert 0 <= deadline - now_ms() - HOUR_MS + 60_000 <= 60_000


def test_a_subscription_takes_a_time_and_a_size(server: HttpServer, api: Api) -> None:
    api.append(1, 2)
    with WsClient(server.ports["fast"]) as socket:
        socket.ask("subscribe", topic=api.topic, from_ts="-1h", max_batch_bytes="64 KiB")
        assert seqs(socket.expect("record")) == [1, 2]
        socket.expect("caught_up")
        message = socket.ask("subscribe", topic=api.topic, from_ts=1_795_037_271)
        assert message["message"] == f"from_ts: {GUESS}"
