"""Large bodies on a server with brokers: they reach new local topics and shared ones from each process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.server.whole_server import WholeServer

SHARDS = 2
TEXT = "x" * 1_000_000
RECORDS = [{"data": TEXT}] * 10
OCTETS = b"\x01" * (900 << 10)


def _names(shard: int, prefix: str) -> Iterator[str]:
    return (name for n in count() if shard_of(topic_id(name := f"{prefix}{n}"), SHARDS) == shard)


def path_of(name: str) -> str:
    return f"/v0/topics/{name}"


def start_server(folder: Path) -> WholeServer:
    (folder / "store").mkdir()
    return WholeServer(folder, f"--store-url=file://{folder / 'store'}", shards=SHARDS)


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("placement", ["local", "shared"])
def test_an_append_of_10_mb_is_answered_wherever_it_arrives(
    tmp_path: Path, placement: str, is_warm: bool
) -> None:
    with start_server(tmp_path) as server:
        local, away = _names(0, "t"), _names(1, "t")
        names = [next(local), next(away)]
        if is_warm:
            for name in ("a", "b", "c", "d"):
                server.ask_json("POST", path_of(name), {"records": [{"data": 1}]})
        if placement == "shared":
            with server.connect() as broker:
                assert broker.ask("GET", "/health").status == 200
                for name in names:
                    assert broker.ask("PUT", path_of(name), {"placement": "shared"}).status == 201
        # A connection that its first request placed at shard 0, from where the second name is remote.
        with server.connect() as client:
            assert client.ask("GET", path_of(next(local))).status == 404
            for name in names:
                answer = client.ask("POST", path_of(name), {"records": RECORDS})
                assert answer.status in (200, 201), answer
                assert answer.json["last_seq"] == len(RECORDS)
        for name in names:
            assert server.ask_json("GET", path_of(name))["head_seq"] == len(RECORDS)
            read = server.ask_json("POST", f"{path_of(name)}/diff", {"after_seq": 9, "limit": 1})
            assert [one["data"] for one in read["records"]] == [TEXT]
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 5
    assert "unexpected" not in server.log.read_text()


def test_a_large_record_of_bytes_makes_a_local_topic(tmp_path: Path) -> None:
    with start_server(tmp_path) as server:
        local = next(_names(0, "r"))
        with server.connect() as client:
            for seq in (1, 2):
                answer = client.ask(
                    "POST",
                    f"{path_of(local)}/records",
                    OCTETS,
                    content_type="application/octet-stream",
                )
                assert answer.status == (201 if seq == 1 else 200), answer
                assert answer.json["last_seq"] == seq
