"""A server whose object store is away for a while: writes continue, and reads of old records wait for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.harness.clients.raw_client import Answer
from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import run_here
from tests.harness.server.processes import wait_until
from tests.harness.server.whole_server import WholeServer
from tests.harness.shard.one_shard import RealShard
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS

RECORDS = 60
OLD = 20


def with_exported_segments(folder: Path) -> None:
    (folder / "cold").mkdir()
    shard = RealShard(
        folder / "data", cold_dir=str(folder / "cold"), segment_max_events=10, hot_retain_segments=2
    )
    for number in range(RECORDS):
        shard.append("t", number)
    for _ in range(3):
        shard.checkpoint()
        shard.pass_time(ROUND_SECONDS * 1000 + 1)
        shard.append("other", 1)
    shard.shard.close()
    assert len(list((folder / "cold").rglob("*.data"))) == 4


def answer_of(server: WholeServer, target: str) -> Any:
    return server.ask_json("GET", target)


def diff(server: WholeServer, **body: object) -> Answer:
    return server.ask("POST", "/v0/topics/t/diff", body)


def test_a_store_that_is_away_for_a_while_costs_nothing_but_time(tmp_path: Path) -> None:
    with_exported_segments(tmp_path)
    flags = (f"--store-url=file://{tmp_path / 'cold'}", "--store-cache-bytes=1MiB")
    with WholeServer(tmp_path, *flags, shards=1) as server:
        assert answer_of(server, "/v0/store")["kind"] == "file"
        (tmp_path / "cold").rename(tmp_path / "away")
        acked: list[int] = []
        ends = threading.Event()

        def write() -> None:
            writer = TopicClient(server.port)
            while not ends.is_set():
                acked.append(writer.append("t", {"data": len(acked)})["last_seq"])

        writer = threading.Thread(target=write)
        writer.start()
        refused = diff(server, after_seq=0, limit=OLD)
        assert refused.status == 503, refused
        error = refused.json["error"]
        assert (error["code"], error["detail"]["retry_after_ms"]) == ("store_unavailable", 1000)
        recent = diff(server, after_seq=RECORDS - 5, limit=5)
        assert recent.status == 200

        def is_known() -> bool:
            # The check at the start may end after the first read, and not know it yet.
            assert diff(server, after_seq=0, limit=OLD).status == 503
            return "degraded" in answer_of(server, "/v0/ready")

        wait_until(is_known)
        ready = answer_of(server, "/v0/ready")
        assert ready["status"] == "ready"
        assert "object store" in ready["degraded"]
        assert answer_of(server, "/v0/store")["state"] == "away"
        assert b"topics_store_away{" in server.ask("GET", "/v0/metrics").body
        (tmp_path / "away").rename(tmp_path / "cold")
        read = diff(server, after_seq=0, limit=OLD)
        assert read.status == 200
        assert [one["$seq"] for one in read.json["records"]] == list(range(1, OLD + 1))
        ends.set()
        writer.join()
        assert acked == list(range(RECORDS + 1, RECORDS + 1 + len(acked)))
        assert len(acked) > 10
        store = answer_of(server, "/v0/store")
        assert store["requests"]["failed"] >= 1
    assert run_here("verify", tmp_path / "data").code == 0


def test_a_server_starts_while_its_store_is_away(tmp_path: Path) -> None:
    with_exported_segments(tmp_path)
    for path in (tmp_path / "cold").iterdir():
        path.rename(tmp_path / f"away-{path.name}")
    with WholeServer(tmp_path, f"--cold-dir={tmp_path / 'cold'}", shards=1) as server:
        client = TopicClient(server.port)
        assert client.append("t", {"data": 1})["last_seq"] == RECORDS + 1
        assert diff(server, after_seq=0).status == 503


def test_both_names_of_a_store_are_refused(tmp_path: Path) -> None:
    both = ("--cold-dir", tmp_path, "--store-url", "s3://bucket/prefix")
    ran = run_here("serve", *both, "--data-dir", tmp_path / "data")
    assert ran.code == 2
    assert "must be empty: --store-url is set" in ran.err
    ran = run_here("serve", "--store-url", "ftp://host", "--data-dir", tmp_path / "data")
    assert "must begin with file:, s3:, gs: or az:" in ran.err
