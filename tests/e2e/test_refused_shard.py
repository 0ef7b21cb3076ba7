"""A shard that cannot start, and one that starts slowly: the answers to probes and clients, and the log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.server.whole_server import WholeServer, name_on
from tests.harness.shard.one_shard import RealShard, record

pytestmark = pytest.mark.slow


def test_a_shard_that_does_not_start_is_named_without_paths_and_without_a_retry_hint(tmp_path: Path) -> None:
    damaged = name_on(0, 2, "t")
    with WholeServer(tmp_path) as one:
        for shard in range(2):
            answer = one.ask("POST", f"/v0/topics/{one.topic_of(shard, 't')}", {"records": [{"data": 1}]})
            assert answer.status == 201
        assert one.stop() == 0
    for path in (tmp_path / "data/shards/00/wal").glob("wal-*.log"):
        path.unlink()
    with WholeServer(tmp_path) as one, one.connect() as client:
        answers = {
            target: client.ask("GET", target)
            for target in ("/v0/ready", "/v0/ready?allow_degraded=true", "/v0/topics", "/v0/routers")
        }
        answers["partial"] = client.ask("GET", "/v0/topics?partial=true")
        answers["topic"] = one.ask("GET", f"/v0/topics/{damaged}")
        with one.connect() as other:
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
    refused = answers["/v0/ready?allow_degraded=true"].json["shards"][0]
    assert (refused["state"], refused["serving"]) == ("refused", False)
    assert refused["reason"] == "its data is damaged or cannot be used; see the server's log"
    for name, answer in answers.items():
        assert "retry-after" not in answer.fields, name
        assert b"retry_after_ms" not in answer.body, name
        assert str(tmp_path).encode() not in answer.body, name
        assert b"wal-" not in answer.body, name
    log = one.log.read_text()
    assert f"run `topicsd doctor {tmp_path}/data`, then restart the server" in log
    assert log.count("start refused") == 1


def test_the_progress_of_a_replay_moves(tmp_path: Path) -> None:
    shard = RealShard(tmp_path / "data", wal_file_bytes=64 << 20)
    for _ in range(60):
        shard.append("t", *[record(1)] * 10_000)
    shard.close(checkpoint=False)
    seen: list[float] = []
    with WholeServer(tmp_path, "--log=warning", shards=1, is_awaited=False) as server:
        deadline = time.monotonic() + 30
        while (answer := server.ask("GET", "/v0/ready")).status != 200:
            assert time.monotonic() < deadline
            seen.append(answer.json["error"]["detail"]["replay_progress"])
    assert len({one for one in seen if 0 < one < 1}) >= 3
    assert seen == sorted(seen)
