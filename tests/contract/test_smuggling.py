"""Requests that hide in others: within bodies, behind upgrades, behind bodies that are read as they come."""

from __future__ import annotations

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import request_bytes

pytestmark = pytest.mark.http1

RECORDS = b'{"records":[{"data":1}]}'


@pytest.mark.parametrize("upgrade", ["h2c", "websocket, h2c", "TLS/1.3"])
def test_a_body_behind_an_upgrade_that_is_ignored_is_a_body(api: Api, upgrade: str) -> None:
    smuggled = request_bytes("DELETE", api.path)
    fields = (f"upgrade: {upgrade}", "connection: upgrade, http2-settings", "http2-settings: AAA")
    api.append(1)
    answer = api.client.ask("POST", api.path, smuggled, *fields)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert api.state()["head_seq"] == 1


def test_a_body_behind_an_upgrade_to_web_sockets_is_a_body_too(api: Api) -> None:
    api.append(1)
    fields = ("upgrade: websocket", "connection: upgrade")
    answer = api.client.ask("POST", api.path, request_bytes("DELETE", api.path), *fields)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert api.state()["head_seq"] == 1


def test_a_request_within_a_body_is_no_request(api: Api) -> None:
    api.append(1)
    hidden = request_bytes("DELETE", api.path)
    for is_chunked in (False, True):
        api.client.send(
            request_bytes("POST", api.path, hidden, is_chunked=is_chunked)
            + request_bytes("POST", api.path, RECORDS, is_chunked=is_chunked)
            + request_bytes("GET", api.path, hidden, is_chunked=is_chunked)
        )
        assert api.client.read_answer().status == 400
        assert api.client.read_answer().status == 200
        assert api.client.read_answer().status == 400
    assert api.state()["head_seq"] == 3


def test_what_stands_behind_a_chunked_body_is_the_next_request_once(api: Api) -> None:
    chunked = request_bytes("POST", api.path, RECORDS, is_chunked=True)
    plain = request_bytes("POST", api.path, RECORDS)
    sent = chunked + plain
    for at in range(len(chunked) - 12, len(sent)):
        before = api.append(0)["head_seq"]
        api.client.send_in_parts([sent[:at], sent[at:]], pause_seconds=0.0003)
        heads = [api.client.read_answer().json["head_seq"] for _ in range(2)]
        assert heads == [before + 1, before + 2]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_what_a_refused_request_carries_is_never_carried_out(api: Api, is_chunked: bool) -> None:
    api.append(1)
    hidden = request_bytes("DELETE", api.path)
    lengths = ("content-length: 5", "content-length: 6")
    if is_chunked:
        lengths = ("transfer-encoding: chunked", "content-length: 5")
    head = "\r\n".join([f"POST {api.path} HTTP/1.1", "host: a", *lengths, "", ""]).encode()
    api.client.send(head + b"0\r\n\r\n" + hidden + b"x" * 100_000)
    assert api.client.read_answer().closes
    api.client.read_end()


def test_bytes_behind_a_request_that_moves_are_read_once(api: Api) -> None:
    expecting = (
        f"POST {api.path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"content-length: {len(RECORDS)}\r\nexpect: 100-continue\r\n\r\n"
    ).encode()
    plain = request_bytes("POST", api.path, RECORDS)
    packed = request_bytes("POST", api.path, RECORDS, "content-encoding: identity")
    api.client.send(plain + expecting + RECORDS + plain + packed + plain)
    assert [api.client.read_answer().json["head_seq"] for _ in range(5)] == [1, 2, 3, 4, 5]
