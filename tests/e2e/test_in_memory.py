"""A server in memory: nothing is written, durable classes are refused, lost shards are reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import Answer
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


def ask(server: WholeServer, method: str, path: str, body: bytes | None = None) -> Answer:
    return server.ask(method, f"/v0/topics/{path}", body)


def test_nothing_is_written_and_topics_are_ephemeral(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with WholeServer(tmp_path, "--memory", data_dir=folder / "data") as server:
        topics = [server.topic_of(shard, "t") for shard in range(2)]
        for topic in topics:
            answer = ask(server, "POST", topic, b'{"records":[{"data":1},{"data":2}]}')
            assert (answer.status, answer.json["durability"]) == (201, "ephemeral")
            read = ask(server, "POST", f"{topic}/diff", b"{}")
            assert [one["data"] for one in read.json["records"]] == [1, 2]
        queue = ask(server, "PUT", "jobs", b'{"type":"queue","durable":false}')
        assert (queue.status, queue.json["config"]["durability"]) == (201, "ephemeral")
        ask(server, "POST", "jobs", b'{"records":[{"data":"job"}]}')
        claimed = ask(server, "POST", "jobs/claim", b'{"node":"n"}').json["claimed"]
        assert [one["data"] for one in claimed] == ["job"]
        assert list(folder.iterdir()) == []
        assert "data_dir: ignored: memory is set" in server.log.read_text().replace("--data-dir", "data_dir")
        assert server.stop() == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (b'{"durability":"disk"}', 'durability: must be "ephemeral"'),
        (b'{"durable":true}', "durable: must be false"),
    ],
)
def test_a_durable_class_is_refused(tmp_path: Path, config: bytes, sentence: str) -> None:
    with WholeServer(tmp_path, "--memory", shards=1) as server:
        for parent, method, body in (
            ("", "PUT", config),
            ("config.", "POST", b'{"records":[{"data":1}],"config":%b}' % config),
        ):
            refused = ask(server, method, "t", body)
            assert refused.status == 400
            assert refused.message == f"{parent}{sentence}: this server keeps everything in memory (--memory)"
        assert ask(server, "PUT", "t", b"{}").status == 201
        assert ask(server, "PUT", "t", config).status == 400


def test_a_topic_recreated_after_a_crash_has_another_epoch(tmp_path: Path) -> None:
    with WholeServer(tmp_path, "--memory", shards=1) as server:
        ask(server, "POST", "t", b'{"records":[{"data":1},{"data":2}]}')
        epoch = ask(server, "POST", "t/diff", b"{}").json["epoch"]
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.wait_for_shard(0)
        server.wait_for(lambda: ask(server, "GET", "t").status in (200, 404), "the shard answers")
        assert ask(server, "GET", "t").status == 404
        ask(server, "POST", "t", b'{"records":[{"data":3},{"data":4}]}')
        body = b'{"from_seq":3,"epoch":%d}' % epoch
        again = ask(server, "POST", "t/diff", body).json
        assert again["epoch"] > epoch
        assert again["tombstone"]["reason"] == "recreated"
        assert [one["data"] for one in again["records"]] == [3, 4]
