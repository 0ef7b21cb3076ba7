"""`after_seq` and `from_seq` are two names of one position, wherever a request names one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api

BOTH = "must equal from_seq, which is its other name, got 2 and 1; send one of them"


def bodies(api: Api, place: dict[str, Any]) -> list[tuple[str, str, object]]:
    """Every request over HTTP that names a position, with the prefix of the field."""
    return [
        (f"{api.path}/diff", "", place),
        (f"{api.path}/redrive", "", place),
        ("/v0/watch", f"topics.{api.topic}.", {"topics": {api.topic: place}}),
    ]


def test_every_request_takes_either_name(api: Api) -> None:
    api.append(1, 2, 3)
    for place in ({"after_seq": 2}, {"from_seq": 2}, {"after_seq": 2, "from_seq": 2}):
        assert [one["data"] for one in api.call("POST", "/diff", place).json["records"]] == [3]
        made = api.client.ask("POST", "/v0/watch", {"topics": {api.topic: place}})
        assert made.json["topics"][api.topic]["from_seq"] == 2
        assert api.call("PUT", "/cursors/c", place).json["from_seq"] == 2
        assert api.call("POST", "/redrive", {**place, "dry_run": True}).json["matched"] == 1


def test_two_positions_are_refused(api: Api) -> None:
    api.append(1, 2, 3)
    place = {"after_seq": 2, "from_seq": 1}
    for path, prefix, body in bodies(api, place):
        answer = api.client.ask("POST", path, body)
        assert (answer.status, answer.json["error"]["message"]) == (400, f"{prefix}after_seq: {BOTH}")
    answer = api.refused(400, "invalid_request", "PUT", "/cursors/c", place)
    assert answer.json["error"]["message"] == f"after_seq: {BOTH}"


@pytest.mark.parametrize(
    ("seq", "message"), [(-1, "must be at least 0, got -1"), (1 << 63, f"must be at most {(1 << 63) - 1}")]
)
def test_the_bounds_name_the_field_that_was_sent(api: Api, seq: int, message: str) -> None:
    api.append(1)
    for name in ("after_seq", "from_seq"):
        for path, prefix, body in bodies(api, {name: seq}):
            answer = api.client.ask("POST", path, body)
            error = answer.json["error"]
            assert (error["message"], error["detail"]) == (
                f"{prefix}{name}: {message}",
                {"field": f"{prefix}{name}"},
            )
