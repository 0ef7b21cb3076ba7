"""HTTP/2 through the real server: accepted by the supervisor, served by a worker, beside HTTP/1.1."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.clients.event_client import H2Events
from tests.harness.clients.h2_client import H2Client
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

RECORDS = b'{"records":[{"data":1}]}'


def test_requests_to_all_shards_are_answered_on_one_connection(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server, H2Client(server.port) as client:
        topics = [f"t{n}" for n in range(8)]
        requests = [client.start("POST", f"/v0/topics/{topic}", RECORDS) for topic in topics]
        assert [client.finish(one).status for one in requests] == [201] * 8
        assert client.ask("GET", "/v0/health").json["status"] == "ok"
        assert client.ask("GET", "/v0/ready").status == 200
        listed = client.ask("GET", "/v0/topics").json["topics"]
        assert [one["topic"] for one in listed] == topics
        assert b"topics_" in client.ask("GET", "/v0/metrics").body
        for topic in topics:
            assert len(client.ask("POST", f"/v0/topics/{topic}/diff", b"{}").json["records"]) == 1
        for watched in (topics, *([topic] for topic in topics)):
            body = {"topics": {topic: {"from_seq": 0} for topic in watched}}
            # The stream uses this connection, whatever its home shard is.
            events = H2Events(client, client.ask_json("POST", "/v0/watch", body)["stream_url"])
            assert sorted(events.records(len(watched))) == [(topic, 1) for topic in watched]
        assert server.ask_json("GET", "/v0/topics/t0")["head_seq"] == 1


def test_a_preface_sent_byte_by_byte_is_recognized(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server, server.connect() as client:
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        client.send_in_parts([preface[at : at + 1] for at in range(len(preface))])
        assert client.socket.recv(9, 0x100)[3] == 4  # MSG_WAITALL


def test_a_stop_answers_requests_in_flight_and_sends_goaway(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server, H2Client(server.port) as client:
        client.ask("PUT", "/v0/topics/t", b"{}")
        waiting = client.start("POST", "/v0/topics/t/diff", b'{"wait_ms":30000}')
        client.ask("GET", "/v0/topics/t")
        server.signal(signal.SIGTERM)
        assert client.finish(waiting).json["records"] == []
        client.read_to_end()
        assert client.gone_away == (client.last_id, 0)
        assert server.wait() == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_speaks_http2(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}/v0/topics/t"
        curl = ["curl", "--silent", "--write-out", "\n%{http_version} %{http_code}"]
        known = [*curl, "--http2-prior-knowledge", "--header", "content-type: application/json"]
        large = tmp_path / "body"
        large.write_bytes(b'{"records":[{"data":"%b"}' % (b"x" * 900_000) + b',{"data":1}]}')
        for body, status in ((RECORDS.decode(), 201), (f"@{large}", 200)):
            ran = subprocess.run([*known, "--data-binary", body, url], capture_output=True)
            answer, _, how = ran.stdout.decode().rpartition("\n")
            assert how == f"2 {status}", ran
            assert json.loads(answer)["topic"] == "t"
        read = [*known, "--compressed", "--data", "{}", f"{url}/diff"]
        ran = subprocess.run(read, capture_output=True)
        answer, _, how = ran.stdout.decode().rpartition("\n")
        assert how == "2 200"
        assert [len(str(one["data"])) for one in json.loads(answer)["records"]] == [1, 900_000, 1]
        if "HTTP2" in subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout:
            ran = subprocess.run([*curl, "--http2", url], capture_output=True)
            assert ran.stdout.decode().rpartition("\n")[2] == "1.1 200"
