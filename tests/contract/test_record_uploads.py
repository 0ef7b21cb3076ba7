"""One record as the body of a request, and its read: `/v0/topics/:topic/records`."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import topicsd.engine.spool
from tests.contract.api import BROKEN_UPLOADS, OCTETS, Api
from tests.harness.clients.h2_client import H2Client, request_headers
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.http_server import FAST, H2, HttpServer
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import WholeServer

MIB = 1 << 20
SPOOLED = 300 << 10
"""More than a body may take in memory."""


def data_of(size: int) -> bytes:
    return bytes(number * 37 % 251 for number in range(1009)) * (size // 1009) + bytes(size % 1009)


def digest(data: bytes, name: str = "sha256") -> str:
    return b64encode(hashlib.new(name, data).digest()).decode()


def spool_files() -> int:
    """Count the open files of the spool of this process, which runs the server."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += "spool.tmp" in os.readlink(f"/proc/self/fd/{fd}")
    return count


def until(is_so: Callable[[], bool]) -> None:
    wait_until(is_so, "the spool has no file")


@pytest.mark.parametrize("size", [0, 1, 65_536, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, SPOOLED, MIB])
def test_a_body_of_any_size_is_a_record(api: Api, size: int) -> None:
    data = data_of(size)
    answer = api.upload(data)
    assert (answer.status, answer.json["seqs"], answer.json["created"]) == (201, [1], True)
    assert api.upload(data, "?return_seqs=false").json["last_seq"] == 2
    read = api.call("GET", "/records/2")
    assert (read.status, read.fields["content-type"], read.body) == (200, OCTETS, data)
    assert api.diff(limit=1)["records"][0]["data_base64"] == b64encode(data).decode()
    until(lambda: spool_files() == 0)


def test_a_record_has_the_tag_the_node_and_the_key_of_its_request(api: Api) -> None:
    query = "?tag=caf%C3%A9&node=n1"
    assert api.upload(b"x", query, "idempotency-key: k").status == 201
    assert api.upload(b"x", query, "idempotency-key: k").json["deduped"] is True
    other = api.upload(b"y", query, "idempotency-key: k")
    assert (other.status, other.code) == (409, "idempotency_mismatch")
    [record] = api.diff(include_tags=True)["records"]
    assert (record["$tag"], record["$node"]) == ("café", "n1")
    assert api.seqs(node="n1") == []


@pytest.mark.parametrize(("query", "field"), BROKEN_UPLOADS)
def test_a_parameter_that_breaks_a_rule_is_refused_by_name(api: Api, query: str, field: str) -> None:
    answer = api.upload(b"x", query)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.message.startswith(f"{field}: ")


def test_create_false_writes_only_to_what_is_there(api: Api) -> None:
    assert api.upload(b"x", "?create=false").status == 404
    api.put()
    assert api.upload(b"x", "?create=false").status == 200


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/html", "text/plain; charset=latin1", None]
)
@pytest.mark.parametrize("size", [0, 5, SPOOLED])
def test_another_content_type_is_refused(api: Api, content_type: str | None, size: int) -> None:
    answer = api.upload(data_of(size), content_type=content_type)
    assert (answer.status, answer.code) == (415, "unsupported_media_type")
    rule = "charset must be utf-8" if content_type and "charset" in content_type else f"must be {OCTETS}, "
    assert f"content-type: {rule}" in answer.message


def test_a_parameter_of_the_content_type_is_ignored(api: Api) -> None:
    assert api.upload(b"x", content_type="Application/Octet-Stream; a=b").status == 201


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB, 65 * MIB])
def test_a_body_that_is_too_large_is_refused_with_the_bound(api: Api, size: int) -> None:
    # Without its bytes: the length is enough.
    if isinstance(api.client, RawClient):
        head = f"POST {api.path}/records HTTP/1.1\r\nhost: h\r\ncontent-type: {OCTETS}\r\n"
        api.client.send(f"{head}content-length: {size}\r\n\r\n".encode())
        answer = api.client.read_answer()
    else:
        assert isinstance(api.client, H2Client)
        fields = [(b"content-type", OCTETS.encode()), (b"content-length", b"%d" % size)]
        headers = [*request_headers("POST", f"{api.path}/records"), *fields]
        answer = api.client.finish(api.client.open(headers, ends=False))
    assert (answer.status, answer.code) == (413, "payload_too_large")
    assert "at most 1 MiB" in answer.message


def test_a_body_of_unknown_length_is_refused_where_it_is_too_large(api: Api) -> None:
    target = f"{api.path}/records"
    whole = api.client.start("POST", target, data_of(MIB), content_type=OCTETS, is_chunked=True)
    assert api.client.finish(whole).status == 201
    data = data_of(MIB + 1)
    answer = api.client.finish(api.client.start("POST", target, data, content_type=OCTETS, is_chunked=True))
    assert (answer.status, answer.code) == (413, "payload_too_large")
    until(lambda: spool_files() == 0)


@pytest.mark.parametrize("size", [0, 10, SPOOLED])
def test_a_digest_is_compared_with_the_body(api: Api, size: int) -> None:
    data = data_of(size)
    good = f"md5=:AA==:, sha-256=:{digest(data)}:, sha-512=:{digest(data, 'sha512')}:"
    assert api.upload(data, "", f"content-digest: {good}").status == 201
    for bad in (f"sha-256=:{digest(data + b'x')}:", f"sha-256=:{digest(data)}:,sha-512=:AAAA:"):
        with HttpClientOf(api) as one:
            answer = one.upload(data, "", f"content-digest: {bad}")
            assert (answer.status, answer.code) == (400, "invalid_request")
            assert answer.message.startswith("content-digest: must be the sha-")
    for malformed in ("x", "md5=:AA==:", "sha-256=AA==", "sha-256=:A:", "sha-256=:AA==:;a"):
        with HttpClientOf(api) as one:
            answer = one.upload(data, "", f"content-digest: {malformed}")
            assert answer.message.startswith("content-digest: must have a digest by sha-256"), malformed
    assert api.state()["count"] == 1


def test_the_digest_of_a_compressed_body_is_that_of_its_bytes_as_sent(api: Api) -> None:
    data = data_of(SPOOLED)
    packed = gzip.compress(data)
    fields = ("content-encoding: gzip", f"content-digest: sha-256=:{digest(packed)}:")
    assert api.upload(packed, "", *fields).status == 201
    assert api.call("GET", "/records/1").body == data


def test_the_digest_of_a_json_body_is_compared_too(api: Api) -> None:
    body = b'{"records":[{"data":1}]}'
    answer = api.client.ask("POST", api.path, body, f"content-digest: sha-256=:{digest(body)}:")
    assert answer.status == 201
    with HttpClientOf(api) as one:
        answer = one.client.ask("POST", api.path, body, f"content-digest: sha-256=:{digest(b'x')}:")
        assert (answer.status, answer.code) == (400, "invalid_request")


class HttpClientOf:
    """Another connection for requests whose refusal ends it."""

    server: HttpServer
    lane: str

    def __init__(self, api: Api) -> None:
        self._api = api

    def __enter__(self) -> Api:
        self._client = self.server.connect(self.lane)
        return Api(self._client, self._api.topic)

    def __exit__(self, *about: object) -> None:
        self._client.close()


@pytest.fixture(autouse=True)
def _connect(request: pytest.FixtureRequest) -> None:
    if "lane" in request.fixturenames:
        HttpClientOf.server = request.getfixturevalue("server")
        HttpClientOf.lane = request.getfixturevalue("lane")


# -- text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "x", 'a "quote"\n\tand \0', "größe 😀", "x" * (500 << 10)])
def test_a_text_is_one_json_string(api: Api, text: str) -> None:
    answer = api.upload(text.encode(), "?tag=t&node=n", content_type="text/plain; charset=UTF-8")
    assert (answer.status, answer.json["seqs"]) == (201, [1])
    [record] = api.diff(include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["$node"]) == (text, "t", "n")


def test_a_text_that_is_not_utf8_or_grows_too_large_is_refused(api: Api) -> None:
    assert api.upload(b"\xff", content_type="text/plain").code == "invalid_request"
    assert api.upload(b"\n" * (600 << 10), content_type="text/plain").code == "record_too_large"
    assert api.call("GET").status == 404
    assert api.upload(b"x", "?as=record", content_type="text/plain").message.startswith("as: ")


# -- reading -------------------------------------------------------------------------------------------------


def test_a_record_of_json_is_read_as_json(api: Api) -> None:
    api.append_raw(b'{"data":{"n":1.0}}')
    answer = api.call("GET", "/records/1")
    assert (answer.status, answer.fields["content-type"]) == (200, "application/json")
    assert answer.body == b'{"n":1.0}\n'
    assert api.call("HEAD", "/records/1").body == b""


@pytest.mark.parametrize("seq", ["0", "-1", "x", "1e3", "9" * 17])
def test_a_seq_that_is_none_is_refused(api: Api, seq: str) -> None:
    api.append(1)
    assert api.refused(400, "invalid_request", "GET", f"/records/{seq}").message.startswith("seq: ")


def test_a_record_that_is_not_there_is_not_found(api: Api) -> None:
    api.refused(404, "topic_not_found", "GET", "/records/1")
    api.append(1, 2, 3)
    api.delete(seqs=[2])
    for seq in (2, 4, 1000):
        assert f"seq {seq}" in api.refused(404, "not_found", "GET", f"/records/{seq}").message
    assert api.call("GET", "/records/3").body == b"3\n"


# -- uploads that do not end ---------------------------------------------------------------------------------


def begin(server: HttpServer, lane: str, path: str, size: int) -> RawClient | H2Client:
    """Begin an upload, and send enough for a file of the spool."""
    client = server.connect(lane)
    if isinstance(client, H2Client):
        fields = [(b"content-type", OCTETS.encode()), (b"content-length", b"%d" % MIB)]
        stream = client.open([*request_headers("POST", f"{path}/records"), *fields], ends=False)
        client.send_body(stream, data_of(size), ends=False)
        return client
    assert isinstance(client, RawClient)
    head = (
        f"POST {path}/records HTTP/1.1\r\nhost: h\r\ncontent-type: {OCTETS}\r\ncontent-length: {MIB}\r\n\r\n"
    )
    client.send(head.encode() + data_of(size))
    return client


def test_a_client_that_leaves_midway_leaves_nothing(server: HttpServer, lane: str, api: Api) -> None:
    client = begin(server, lane, api.path, 2 * SPOOLED)
    wait_until(lambda: spool_files() == 1, "a file has the body")
    client.close()
    until(lambda: spool_files() == 0)
    api.refused(404, "topic_not_found", "GET")


def test_a_client_that_is_too_slow_is_refused(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as server:
        client = begin(server, FAST, "/v0/topics/slow", 2 * SPOOLED)
        assert isinstance(client, RawClient)
        wait_until(lambda: spool_files() == 1, "a file has the body")
        server.pass_timeout(3600)
        assert client.read_answer().status == 408
        until(lambda: spool_files() == 0)
        client.close()


def test_a_small_body_needs_no_file(tmp_path: Path) -> None:
    with HttpServer(tmp_path, spool_bytes=4 * MIB, max_record_bytes=4 * MIB) as server:
        client = begin(server, FAST, "/v0/topics/small", 2 * SPOOLED)
        with server.connect(FAST) as other:
            assert other.ask("GET", "/v0/topics/none").status == 404
        assert spool_files() == 0
        client.close()


@pytest.mark.parametrize(
    ("number", "status", "code"),
    [
        (errno.ENOSPC, 507, "storage_full"),
        (errno.EDQUOT, 507, "storage_full"),
        (errno.EIO, 503, "storage_failed"),
    ],
)
def test_a_disk_without_room_refuses_the_upload(
    api: Api, monkeypatch: pytest.MonkeyPatch, number: int, status: int, code: str
) -> None:
    def fail(*about: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(topicsd.engine.spool, "write_all", fail)
    answer = api.upload(data_of(SPOOLED * 2))
    assert (answer.status, answer.code) == (status, code)
    until(lambda: spool_files() == 0)
    with HttpClientOf(api) as one:
        assert one.upload(data_of(100)).status == 201


def test_a_name_that_a_crash_left_is_removed_by_a_start(tmp_path: Path) -> None:
    with HttpServer(tmp_path) as server:
        server.stop()
        name = tmp_path / "shards/00/meta/spool.tmp"
        name.write_bytes(b"left")
        server.start()
        assert not name.exists()


def test_a_key_is_checked_before_the_body_arrives(tmp_path: Path) -> None:
    keys = "aaaaaaaaaaaaaaaa:read,bbbbbbbbbbbbbbbb:write"
    with HttpServer(tmp_path, keys=keys) as server:
        for field, status in (("", 401), ("authorization: Bearer aaaaaaaaaaaaaaaa\r\n", 403)):
            with RawClient(server.ports[FAST]) as client:
                head = f"POST /v0/topics/a/records HTTP/1.1\r\nhost: h\r\n{field}content-type: {OCTETS}\r\n"
                client.send(f"{head}content-length: {MIB}\r\n\r\n".encode())
                assert client.read_answer().status == status
        with H2Client(server.ports[H2]) as one:
            fields = [(b"content-type", OCTETS.encode()), (b"content-length", b"%d" % MIB)]
            stream = one.open([*request_headers("POST", "/v0/topics/a/records"), *fields], ends=False)
            assert one.finish(stream).status == 401


# -- over shards ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--memory",)], ids=str)
def test_any_worker_takes_an_upload_for_any_shard(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with WholeServer(tmp_path, *flags, "--max-record-bytes=16777216", shards=2) as server:
        topics = [server.topic_of(shard, f"t{shard}") for shard in range(2)]
        # One connection: its worker has one of the topics.
        with RawClient(server.port) as client:
            for size in (10, SPOOLED, 5 * MIB, 16 * MIB):
                for topic in topics:
                    data = data_of(size)
                    path = f"/v0/topics/{topic}/records"
                    key = f"idempotency-key: {size}"
                    field = f"content-digest: sha-256=:{digest(data)}:"
                    answer = client.ask("POST", path, data, key, field, content_type=OCTETS)
                    assert answer.status in (200, 201), answer
                    read = client.ask("GET", f"{path}/{answer.json['last_seq']}")
                    assert (read.status, read.body) == (200, data)
                    again = client.ask("POST", path, data, key, field, content_type=OCTETS)
                    assert again.json["deduped"] is True
