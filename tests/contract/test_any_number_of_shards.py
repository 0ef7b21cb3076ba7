"""A client never sees the shards: with any number of them, and on any connection, the answers are the same.

One script of requests is played against servers of several numbers of shards: each request on a connection of
its own, then all on one that began at each of the shards in its turn or at the supervisor, and then on one
that sends them without waiting. Only times differ, shards, and epochs, which count within a shard.
"""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.contract.request_script import TOPICS, ScriptRequest, script
from tests.harness.clients.raw_client import Answer, RawClient, request_bytes
from tests.harness.server.whole_server import WholeServer, name_on
from tests.harness.sweeps.crash_sweep import DEEP

SHARD_COUNTS = (1, 2, 5)
AHEAD = 40
# Running all of the ways is slow; the last two begin at the last shard and at the supervisor.
AHEAD_WAYS = 6 if DEEP else 2
RECORD = b'{"records":[{"data":1}]}'
KEYS = {
    "no key": None,
    "a stranger": "an-unknown-key",
    "everybody": "a-key-that-may-do-everything",
    "a reader": "a-key-that-may-read-only",
    "a writer of some": "a-key-for-topics-with-an-a",
}
GIVEN_KEYS = "a-key-that-may-do-everything,a-key-that-may-read-only:read,a-key-for-topics-with-an-a:rw:a|g|z"

_CHANGING = re.compile(
    rb'("(?:server_total_ms|\$ts|epoch|shard|last_write_ts|last_read_ts|durable_seq|uptime_ms|'
    rb'effective_priority)":)'
    rb"-?[0-9.e+-]+"
)
# A retry has them when it is answered together with the write that it repeats.
_SOMETIMES = re.compile(rb',"(?:wal_append_ms|fsync_ms|throttle_wait_ms)":[0-9.e-]+')

pytestmark = pytest.mark.slow


class Response(NamedTuple):
    """An answer without what may differ."""

    status: int
    reason: str
    fields: dict[str, str]
    body: bytes


def _timeless(answer: Answer) -> Response:
    fields = dict(answer.fields)
    fields.pop("content-length", None)
    body = answer.body
    if body and fields.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return Response(answer.status, answer.reason, fields, _CHANGING.sub(rb"\1*", _SOMETIMES.sub(b"", body)))


def _fresh(port: int, requests: list[ScriptRequest]) -> Iterator[Response]:
    for one in requests:
        with RawClient(port) as client:
            client.send(one.wire)
            yield _timeless(client.read_answer(one.method))


def _kept(port: int, requests: list[ScriptRequest], opener: bytes, ahead: int = 1) -> Iterator[Response]:
    """On one connection, that begins with `opener`; after an answer that ends it, on another one."""
    waiting = list(requests)
    while waiting:
        with RawClient(port) as client:
            client.send(opener)
            client.read_answer()
            closes = False
            while waiting and not closes:
                burst, waiting = _next_burst(waiting, ahead)
                # Beside the reading: what is sent at once may be more than the sockets hold.
                sender = threading.Thread(target=_send, args=(client, b"".join(one.wire for one in burst)))
                sender.start()
                for number, one in enumerate(burst):
                    answer = client.read_answer(one.method)
                    yield _timeless(answer)
                    closes = answer.closes
                    if closes:
                        client.read_end()
                        waiting = burst[number + 1 :] + waiting
                        break
                sender.join()


def _next_burst(waiting: list[ScriptRequest], ahead: int) -> tuple[list[ScriptRequest], list[ScriptRequest]]:
    """So many, but nothing behind a request that says that it is the last one."""
    ends = [at + 1 for at, one in enumerate(waiting[:ahead]) if b"\r\nconnection: close\r\n" in one.wire]
    count = min([ahead, *ends])
    return waiting[:count], waiting[count:]


def _send(client: RawClient, wire: bytes) -> None:
    # The server may have closed behind an answer that says so.
    with suppress(OSError):
        client.send(wire)


def _compare(
    requests: list[ScriptRequest], expected: list[Response], responses: Iterator[Response], way: str
) -> None:
    for one, due, came in zip(requests, expected, responses, strict=True):
        assert came == due, f"{way}: {one.label}"


def _openers(shards: int) -> dict[str, bytes]:
    """Return requests that leave a connection at each of the shards, or at the supervisor."""
    topics = {
        f"at shard {shard}": request_bytes("GET", f"/v0/topics/{name_on(shard, shards, 'opener')}")
        for shard in range(shards)
    }
    topics["at the supervisor"] = request_bytes("GET", "/v0/health")
    return topics


def _with_keys(requests: list[ScriptRequest]) -> list[ScriptRequest]:
    """Each request with each key; those that are malformed are left as they are."""
    with_keys = []
    for one in requests:
        line, line_end, rest = one.wire.partition(b"\r\n")
        for who, key in KEYS.items():
            field = b"authorization: Bearer %b\r\n" % key.encode() if key else b""
            head = line + line_end + field
            with_keys.append(ScriptRequest(f"{who}: {one.label}", one.method, head + rest))
    return with_keys


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, WholeServer]]:
    """By the number of their shards."""
    with ExitStack() as stack:
        yield {
            shards: stack.enter_context(WholeServer(tmp_path_factory.mktemp("shards"), shards=shards))
            for shards in SHARD_COUNTS
        }


@pytest.fixture(scope="module")
def expected(servers: dict[int, WholeServer]) -> list[Response]:
    """What a server of one shard says, each request on a connection of its own."""
    return list(_fresh(servers[1].port, script()))


def test_the_script_goes_round_all_shards_and_is_answered_in_every_way(expected: list[Response]) -> None:
    for shards in SHARD_COUNTS:
        assert {shard_of(topic_id(name), shards) for name in TOPICS} == set(range(shards))
    statuses = {response.status for response in expected}
    assert {200, 201, 400, 404, 405, 409, 413, 414, 415, 422, 431, 501, 505} <= statuses
    assert not statuses & {500, 503, 504}


@pytest.mark.parametrize("shards", SHARD_COUNTS)
def test_answers_are_the_same_on_every_connection(
    servers: dict[int, WholeServer], expected: list[Response], shards: int
) -> None:
    requests, port = script(), servers[shards].port
    _compare(requests, expected, _fresh(port, requests), "on fresh connections")
    for where, opener in _openers(shards).items():
        _compare(requests, expected, _kept(port, requests, opener), f"on one that began {where}")
    for where, opener in list(_openers(shards).items())[-AHEAD_WAYS:]:
        ahead = _kept(port, requests, opener, AHEAD)
        _compare(requests, expected, ahead, f"ahead, on one that began {where}")


def test_answers_are_the_same_for_who_stays_with_a_topic(servers: dict[int, WholeServer]) -> None:
    requests = script(in_turns=False)
    expected = list(_fresh(servers[1].port, requests))
    for shards, server in servers.items():
        opener = _openers(shards)[f"at shard {shards - 1}"]
        _compare(requests, expected, _kept(server.port, requests, opener), f"{shards} shards")
        _compare(requests, expected, _kept(server.port, requests, opener, AHEAD), f"{shards} shards, ahead")


def test_keys_are_judged_the_same_on_every_connection(tmp_path: Path) -> None:
    requests = _with_keys(script(TOPICS[:4]))
    expected: list[Response] = []
    for shards in SHARD_COUNTS:
        folder = tmp_path / str(shards)
        folder.mkdir()
        with WholeServer(folder, shards=shards, environ={"TOPICS_API_KEYS": GIVEN_KEYS}) as server:
            expected = expected or list(_fresh(server.port, requests))
            opener = _openers(shards)[f"at shard {shards - 1}"]
            _compare(requests, expected, _kept(server.port, requests, opener), f"{shards} shards")
            ahead = _kept(server.port, requests, opener, AHEAD)
            _compare(requests, expected, ahead, f"{shards} shards, ahead")
    assert {200, 401, 403} <= {response.status for response in expected}


@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_a_list_has_the_same_pages(servers: dict[int, WholeServer], page_size: int) -> None:
    pages = {}
    for shards, server in servers.items():
        with RawClient(server.port) as client:
            for name in TOPICS:
                assert client.ask("POST", f"/v0/topics/{name}", RECORD).status == 201
            pages[shards] = list(_pages(client, page_size))
            for name in TOPICS:
                assert client.ask("DELETE", f"/v0/topics/{name}").status == 200
    assert pages[1] == pages[2] == pages[5]
    assert len(pages[1]) == -(-len(TOPICS) // page_size)


def test_a_list_has_type_and_class_of_each_topic(servers: dict[int, WholeServer]) -> None:
    with RawClient(servers[2].port) as client:
        names = [servers[2].topic_of(shard, "listed") for shard in (0, 1)]
        client.ask("PUT", f"/v0/topics/{names[0]}", b'{"type":"queue","durability":"fsync"}')
        client.ask("PUT", f"/v0/topics/{names[1]}", b'{"durability":"memory"}')
        listed = {one["topic"]: one for one in client.ask("GET", "/v0/topics?prefix=listed").json["topics"]}
        for name in names:
            client.ask("DELETE", f"/v0/topics/{name}")
    rows = [(listed[name]["type"], listed[name]["durable"], listed[name]["durability"]) for name in names]
    assert rows == [("queue", True, "fsync"), ("log", False, "memory")]


def _pages(client: RawClient, page_size: int) -> Iterator[Response]:
    target = f"/v0/topics?page_size={page_size}"
    answer = client.ask("GET", target)
    yield _timeless(answer)
    while (cursor := answer.json.get("next_cursor")) is not None:
        answer = client.ask("GET", f"{target}&cursor={cursor}")
        yield _timeless(answer)


def test_who_waits_at_another_shard_is_woken(servers: dict[int, WholeServer]) -> None:
    for server in servers.values():
        here, there = (f"/v0/topics/{server.topic_of(shard, 'w')}" for shard in (0, server.shards - 1))
        with RawClient(server.port) as waiting, RawClient(server.port) as writing:
            for path in {here, there}:
                assert waiting.ask("POST", path, RECORD).status == 201
            waiting.send(request_bytes("POST", f"{there}/diff", b'{"from_seq":1,"wait_ms":20000}'))
            assert writing.ask("POST", there, b'{"records":[{"data":"woken"}]}').status == 200
            records = waiting.read_answer().json["records"]
            assert [record["data"] for record in records] == ["woken"]
            for path in {here, there}:
                assert writing.ask("DELETE", path).status == 200
