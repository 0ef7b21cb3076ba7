"""A shard that cannot start, and one that starts slowly: the answers to probes and clients, and the log."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.command_run import command_line, environment
from tests.harness.one_shard import RealShard, record
from tests.harness.raw_client import RawClient
from tests.harness.running_server import served
from tests.harness.whole_server import name_on

pytestmark = pytest.mark.slow


def test_a_shard_that_does_not_start_is_named_without_paths_and_without_a_retry_hint(tmp_path: Path) -> None:
    damaged = name_on(0, 2, "t")
    with served(tmp_path) as one:
        for shard in range(2):
            with RawClient(one.port) as client:
                body = b'{"records":[{"data":1}]}'
                assert client.ask("POST", f"/v0/topics/{name_on(shard, 2, 't')}", body).status == 201
        assert one.stop() == 0
    for path in (tmp_path / "data/shards/00/wal").glob("wal-*.log"):
        path.unlink()
    with served(tmp_path) as one, RawClient(one.port) as client:
        answers = {
            target: client.ask("GET", target)
            for target in ("/v0/ready", "/v0/ready?allow_degraded=true", "/v0/topics", "/v0/routers")
        }
        answers["partial"] = client.ask("GET", "/v0/topics?partial=true")
        with RawClient(one.port) as other:
            answers["topic"] = other.ask("GET", f"/v0/topics/{damaged}")
        with RawClient(one.port) as other:
            # Through the worker of the other shard.
            assert other.ask("GET", f"/v0/topics/{name_on(1, 2, 't')}").status == 200
            answers["remote"] = other.ask("GET", f"/v0/topics/{damaged}")
    outcomes = {name: (one.status, one.json.get("error", {}).get("code")) for name, one in answers.items()}
    assert outcomes == {
        "/v0/ready": (503, "not_ready"),
        "/v0/ready?allow_degraded=true": (200, None),
        "/v0/topics": (503, "not_ready"),
        "/v0/routers": (503, "not_ready"),
        "partial": (200, None),
        "topic": (503, "storage_failed"),
        "remote": (503, "storage_failed"),
    }
    for name, answer in answers.items():
        assert "retry-after" not in answer.fields, name
        assert b"retry_after_ms" not in answer.body, name
        assert str(tmp_path).encode() not in answer.body, name
        assert b"wal-" not in answer.body, name
    log = one.log.read_text()
    assert f"run `topicsd doctor {tmp_path}/data`, then restart the server" in log
    assert log.count("start refused") == 1


def ready(port: int) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/v0/ready")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_the_progress_of_a_replay_moves(tmp_path: Path) -> None:
    shard = RealShard(tmp_path / "data", wal_file_bytes=64 << 20)
    for _ in range(60):
        shard.append("t", *[record(1)] * 10_000)
    shard.close(checkpoint=False)
    port_file = tmp_path / "port"
    line = command_line(
        "serve", "--port=0", f"--port-file={port_file}", f"--data-dir={tmp_path / 'data'}", "--log=warning"
    )
    seen: list[float] = []
    with subprocess.Popen(line, env=environment()) as server:
        try:
            deadline = time.monotonic() + 30
            while not port_file.exists() or not port_file.read_text():
                assert server.poll() is None
                assert time.monotonic() < deadline
            while (answer := ready(int(port_file.read_text())))[0] != 200:
                assert time.monotonic() < deadline
                seen.append(answer[1]["error"]["detail"]["replay_progress"])
        finally:
            server.terminate()
    assert len({one for one in seen if 0 < one < 1}) >= 3
    assert seen == sorted(seen)
