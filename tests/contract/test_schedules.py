"""Recurring jobs: `/v0/topics/:topic/schedules`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.processes import wait_until

DAILY = {"cron": "30 3 * * *", "time_zone": "Europe/Berlin"}


def test_a_schedule_is_put_and_shown(api: Api) -> None:
    api.put(type="queue")
    body = {**DAILY, "data": {"b": [1.0]}, "meta": {"k": 1}, "tag": "t", "priority": 3, "catch_up": "all"}
    made = api.call("PUT", "/schedules/s.1", body)
    expected: dict[str, Any] = {"topic": api.topic, "schedule": "s.1", **body, "paused": False}
    assert (made.status, made.json["created"]) == (201, True)
    shown = api.call("GET", "/schedules/s.1").json
    assert shown.items() >= expected.items()
    assert made.json.items() >= expected.items()
    assert b"[1.0]" in api.call("GET", "/schedules/s.1").body, "the data stays as it was sent"
    now = time.time() * 1000
    assert now < shown["next_ts"] <= now + 25 * 3_600_000
    assert (shown["next_ts"] % 60_000, shown["last_seq"]) == (0, 0)
    again = api.call("PUT", "/schedules/s.1", {"cron": "@daily", "paused": True})
    assert (again.status, again.json["created"], again.json["next_ts"]) == (200, False, None)
    defaults = {"time_zone": "UTC", "data": None, "meta": {}, "tag": None, "priority": 0, "catch_up": "last"}
    assert again.json.items() >= defaults.items()


def test_schedules_are_listed_and_deleted(api: Api) -> None:
    api.put(type="queue")
    for name in ("b", "a"):
        api.call("PUT", f"/schedules/{name}", DAILY)
    listed = api.call("GET", "/schedules").json["schedules"]
    assert [(one["schedule"], one["cron"]) for one in listed] == [("a", "30 3 * * *"), ("b", "30 3 * * *")]
    assert [api.call("DELETE", "/schedules/a").json["deleted"] for _ in range(2)] == [True, False]
    api.refused(404, "not_found", "GET", "/schedules/a")
    assert [one["schedule"] for one in api.call("GET", "/schedules").json["schedules"]] == ["b"]


@pytest.mark.slow
def test_a_tick_of_the_real_clock_gets_its_job(api: Api) -> None:
    """The real clock: a schedule of every minute gets its job at the start of the next one."""
    api.put(type="queue")
    made = api.call("PUT", "/schedules/s", {"cron": "* * * * *", "data": "tick"}).json
    wait_until(lambda: api.state()["head_seq"] == 1, "the tick has a job", seconds=90)
    job = api.call("POST", "/claim", {"node": "w"}).json["claimed"][0]
    assert (job["data"], job["meta"]) == ("tick", {"$schedule": "s", "$schedule_ts": made["next_ts"]})
    assert 0 <= job["$ts"] - made["next_ts"] < 30_000
    assert api.call("GET", "/schedules/s").json["last_seq"] == 1


@pytest.mark.parametrize(
    ("rest", "body", "message"),
    [
        ("s", {}, "cron: is required"),
        ("s", None, "cron: is required"),
        ("s", {"cron": 5}, "cron: must be a string"),
        ("s", {"cron": "61 * * * *"}, "cron: minute must be from 0 to 59, got 61"),
        ("s", {"cron": "0 0 31 2 *"}, "cron: selects no day of any year"),
        ("s", {"cron": "@daily", "time_zone": "Europe/Berlim"}, "time_zone: must be a name of the IANA"),
        ("s", {"cron": "@daily", "priority": 10}, "priority: must be from 0 to 9, got 10"),
        ("s", {"cron": "@daily", "catch_up": "some"}, 'catch_up: must be none, last or all, got "some"'),
        ("s", {"cron": "@daily", "paused": 1}, "paused: must be true or false"),
        ("s", {"cron": "@daily", "meta": [1]}, "meta: must be a JSON object"),
        ("s", {"cron": "@daily", "meta": {"k": "x" * 20_000}}, "meta: must be at most"),
        ("s", {"cron": "@daily", "tag": "x" * 300}, "tag: must be at most 256 bytes"),
        ("s", {"cron": "@daily", "tag": "a\0b"}, "tag: must not contain a NUL character"),
        ("s", b'{"cron":"@daily","data":' + b"[" * 200 + b"]" * 200 + b"}", "data: must be nested at most"),
        ("s", {"cron": "@daily", "data_base64": "AA=="}, "data_base64: unknown field"),
        ("a%20b", DAILY, "schedule: must be a schedule name"),
    ],
)
def test_what_is_wrong_is_named(api: Api, rest: str, body: object, message: str) -> None:
    api.put(type="queue")
    answer = api.refused(400, "invalid_request", "PUT", f"/schedules/{rest}", body)
    assert answer.message.startswith(message)
    assert api.call("GET", "/schedules").json["schedules"] == []


def test_only_queues_have_schedules(api: Api) -> None:
    for method, rest, body in (
        ("PUT", "/schedules/s", DAILY),
        ("GET", "/schedules/s", None),
        ("DELETE", "/schedules/s", None),
        ("GET", "/schedules", None),
    ):
        api.refused(404, "topic_not_found", method, rest, body)
    api.append(1)
    api.refused(409, "not_a_queue", "PUT", "/schedules/s", DAILY)
    api.refused(409, "not_a_queue", "DELETE", "/schedules/s")
    api.refused(409, "not_a_queue", "GET", "/schedules")
