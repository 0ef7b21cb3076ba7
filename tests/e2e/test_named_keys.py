"""Named keys through the real server: in use everywhere at once, durable, and in the audit log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.event_client import EventClient
from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import Answer
from tests.harness.clients.ws_client import WsClient
from tests.harness.output.command_run import run_command
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

RECORDS = {"records": [{"data": 1}]}


def ask(server: WholeServer, method: str, path: str, body: object = None, key: str = "") -> Answer:
    return server.ask(method, path, body, *([f"authorization: Bearer {key}"] if key else []))


def statuses(server: WholeServer, key: str) -> set[int]:
    """Return the statuses of requests to every shard and to the supervisor with that key."""
    paths = [*(f"/v0/topics/{server.topic_of(shard, 'orders.')}" for shard in range(2)), "/v0/topics"]
    return {ask(server, "GET", path, None, key).status for path in paths}


def audited(server: WholeServer) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["module"] == "topicsd.audit"]


def test_a_key_from_its_creation_to_its_end(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        for shard in range(2):
            server.ask_json("POST", f"/v0/topics/{server.topic_of(shard, 'orders.')}", RECORDS)
        assert ask(server, "PUT", "/v0/keys/root", {}).code == "key_conflict"
        root = ask(server, "PUT", "/v0/keys/root", {"require_keys": True}).json["key"]
        # Every process has it by the time of the answer, and none accepts requests without a key.
        assert statuses(server, root) == {200}
        assert statuses(server, "") == {401}
        body = {"scopes": ["read"], "prefixes": ["orders."]}
        reader = ask(server, "PUT", "/v0/keys/reader", body, root).json["key"]
        assert statuses(server, reader) == {200}
        assert ask(server, "GET", "/v0/keys", None, reader).status == 403
        assert ask(server, "GET", "/v0/whoami", None, reader).json["key"]["name"] == "reader"
        assert ask(server, "GET", "/v0/whoami").status == 401
        with H2Client(server.port) as client:
            answer = client.ask("GET", "/v0/keys", None, f"authorization: Bearer {root}")
            assert [one["name"] for one in answer.json["keys"]] == ["reader", "root"]
        metrics = ask(server, "GET", "/v0/metrics?topics=0", None, root).body.decode().splitlines()
        assert {"topics_named_keys 2", "topics_named_keys_expired 0"} <= set(metrics)
        # A worker that is started now begins with these keys.
        server.kill_worker(0)
        server.wait_for(lambda: statuses(server, reader) == {200}, "the worker is back")
        assert statuses(server, "") == {401}

        topic = server.topic_of(1, "orders.")
        session = ask(server, "POST", "/v0/watch", {"topics": {topic: {"tail": True}}}, reader).json
        url = f"{session['stream_url']}?token={reader}"
        with (
            EventClient(server.port, url) as events,
            WsClient(server.port, f"authorization: Bearer {reader}") as socket,
        ):
            events.begin()
            assert socket.ask("ping") == {"op": "pong"}
            assert ask(server, "DELETE", "/v0/keys/reader", None, root).json["deleted"]
            assert statuses(server, reader) == {401}
            ends = [event for event in events.rest() if event.name == "error"]
            assert ends[-1].data["code"] == "unauthorized"
        new = ask(server, "POST", "/v0/keys/root/rotate", {}, root).json["key"]
        assert statuses(server, root) == {401}
        assert statuses(server, new) == {200}
        server.kill()
        server.start()
        assert statuses(server, new) == {200}
        assert statuses(server, root) == statuses(server, reader) == statuses(server, "") == {401}
        assert server.stop() == 0
    text = server.log.read_text() + (tmp_path / "data" / "KEYS.json").read_text()
    for secret in (root, reader, new):
        assert secret.removeprefix("tk_") not in text


def test_a_secret_expires_everywhere(tmp_path: Path) -> None:
    admin = "key-of-an-administrator"
    with WholeServer(tmp_path, shards=2, environ={"TOPICS_API_KEYS": admin}) as server:
        for shard in range(2):
            ask(server, "POST", f"/v0/topics/{server.topic_of(shard, 'orders.')}", RECORDS, admin)
        short = ask(server, "PUT", "/v0/keys/short", {"expires_ms": "+1s"}, admin).json["key"]
        server.wait_for(lambda: statuses(server, short) == {401}, "the key has expired")
        answer = ask(server, "GET", "/v0/whoami", None, short)
        assert answer.message == "the key has expired"


def test_changes_of_configuration_are_in_the_audit_log(tmp_path: Path) -> None:
    admin = "key-of-an-administrator"
    flags = ("--log=warning,topicsd.audit=info",)
    with WholeServer(tmp_path, *flags, shards=2, environ={"TOPICS_API_KEYS": admin}) as server:
        key = ask(server, "PUT", "/v0/keys/ops", {}, admin).json["key"]
        requests: list[tuple[str, str, object, str, str, int]] = []
        for shard in range(2):
            topic = server.topic_of(shard, "audited")
            requests += [
                ("PUT", f"/v0/topics/{topic}", {"ttl_ms": "1h"}, "put_topic", topic, 201),
                ("PUT", f"/v0/topics/{topic}", {"ttl_ms": "x"}, "put_topic", topic, 400),
                ("DELETE", f"/v0/topics/{topic}", None, "delete_topic", topic, 200),
            ]
        requests += [
            ("PUT", "/v0/routers/r", {"source": "a", "dest": "b"}, "put_router", "r", 201),
            ("DELETE", "/v0/routers/r", None, "delete_router", "r", 200),
            ("POST", "/v0/shards", {"count": 2}, "reshard", "", 200),
            ("POST", "/v0/topics/c", {**RECORDS, "config": {"ttl_ms": 5000}}, "append_config", "c", 201),
            ("PUT", "/v0/keys/ci", {"scopes": ["read"]}, "put_key", "ci", 200),
            ("DELETE", "/v0/keys/ci", None, "delete_key", "ci", 200),
        ]
        for method, path, body, *_ in requests:
            ask(server, method, path, body, key)
        # Requests that change no configuration are not in it.
        ask(server, "POST", "/v0/topics/b", RECORDS, key)
        ask(server, "GET", "/v0/topics", None, key)
        # On one connection of the supervisor, and over HTTP/2 through a worker.
        with H2Client(server.port) as client:
            client.ask("DELETE", "/v0/routers/absent", None, f"authorization: Bearer {key}")
        expected = [
            ("put_key", "ops", 200),
            *((operation, name, status) for *_, operation, name, status in requests),
            ("delete_router", "absent", 200),
        ]

        def lines() -> list[tuple[str, str, int]]:
            return [
                (one["message"].removeprefix("audit: "), one.get("name", ""), one["status"])
                for one in audited(server)
            ]

        server.wait_for(lambda: len(lines()) >= len(expected), "the log is written")
        assert sorted(lines()) == sorted(expected)
        assert {one["key"] for one in audited(server)[1:]} == {"ops"}
        assert all(one["address"].startswith("127.0.0.1:") for one in audited(server))
        assert server.stop() == 0
    assert admin not in server.log.read_text()
    assert key not in server.log.read_text()


def test_a_damaged_key_file_stops_the_server_and_is_reported(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        ask(server, "PUT", "/v0/keys/root", {"require_keys": True})
        assert server.stop() == 0
    data = tmp_path / "data"
    assert run_command("verify", data).code == 0
    path = data / "KEYS.json"
    path.write_text(path.read_text().replace('"admin"', '"adm1n"'))
    for command, code in (("verify", 1), ("doctor", 1), ("serve", 2)):
        arguments = ("--port=0", f"--data-dir={data}") if command == "serve" else (data,)
        ran = run_command(command, *arguments)
        assert ran.code == code, (command, ran)
        text = " ".join((ran.out + ran.err).split())
        assert f"{path}: damaged: its checksum does not match" in text, (command, text)
        assert "open to every client" in text, command


def test_a_backup_keeps_the_keys(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1) as server:
        key = ask(server, "PUT", "/v0/keys/root", {"require_keys": True}).json["key"]
        ask(server, "POST", "/v0/topics/a", RECORDS, key)
        assert server.stop() == 0
    url = f"file://{tmp_path / 'backups'}"
    (tmp_path / "backups").mkdir()
    created = run_command("backup", "create", tmp_path / "data", "--to", url)
    assert created.code == 0, created
    restored = tmp_path / "restored"
    assert run_command("backup", "restore", url, restored).code == 0
    assert (restored / "KEYS.json").read_bytes() == (tmp_path / "data" / "KEYS.json").read_bytes()
