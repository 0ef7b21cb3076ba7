"""The disk of a running server is full: writes are refused, reads continue, writes resume."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.books.process_ledger import book_of, seed_of_this_run
from tests.harness.clients.raw_client import Answer, RawClient
from tests.harness.clients.writer_clients import Writers
from tests.harness.machine.small_disk import SmallDisk, small_disk
from tests.harness.server.whole_server import WholeServer

SHARDS = 2
# More than twice the data written before it is filled: a checkpoint keeps a second copy.
DISK_BYTES = 32 << 20
RECORD = b'{"records":[{"data":"%b"}]}' % (b"x" * 4000)
SMALL = b",".join([b'{"data":1}'] * 5)
RESUME_SECONDS = 5.0

pytestmark = pytest.mark.slow


def _path(server: WholeServer, shard: int) -> str:
    return f"/v0/topics/{server.topic_of(shard, 'x')}"


def _write_until_full(server: WholeServer, shard: int) -> Answer:
    with RawClient(server.port) as client:
        for _ in range(10_000):
            answer = client.ask("POST", _path(server, shard), RECORD)
            if answer.status != 200:
                return answer
    raise AssertionError("the disk does not get full")


def _resume_seconds(server: WholeServer, disk: SmallDisk) -> float:
    """Return the seconds from free space until each shard accepts a write."""
    disk.empty()
    started = time.monotonic()
    with RawClient(server.port) as client:
        for shard in range(SHARDS):
            while (answer := client.ask("POST", _path(server, shard), RECORD)).status != 200:
                assert (answer.status, answer.code) == (507, "storage_full"), answer
                assert time.monotonic() - started < 3 * RESUME_SECONDS
                time.sleep(0.05)
    return time.monotonic() - started


def test_a_full_disk_refuses_writes_and_nothing_else_until_there_is_space(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        WholeServer(tmp_path, "--wal-file-bytes=1MiB", shards=SHARDS, data_dir=disk.path / "data") as server,
    ):
        book.make_topics(server.port)
        with RawClient(server.port) as client:
            for shard in range(SHARDS):
                assert client.ask("POST", _path(server, shard), b'{"records":[%b]}' % SMALL).status == 201
        with Writers(server.port, book, seed, size=3000):
            time.sleep(0.2)
            disk.fill()
            server.wait_for(
                lambda: any(seen.status == 507 for seen in book.answers), "writes are refused", 20
            )
            time.sleep(0.3)
        assert {(seen.status, seen.code) for seen in book.answers} == {(507, "storage_full")}
        # No process ended or was restarted, and every acked record can be read.
        book.check(server.port)
        workers = server.worker_pids()
        _check_full(server)
        disk.empty()
        book.answers.clear()
        acked_before = book.acked_count
        disk_free_at = time.monotonic()
        with Writers(server.port, book, f"{seed} again", size=100):
            server.wait_for(lambda: book.acked_count > acked_before + 100, "writes are accepted again")
        print(f"writes resumed within {time.monotonic() - disk_free_at:.2f} s")
        book.check(server.port)
        assert server.worker_pids() == workers
        assert server.stop() == 0
        with server:
            book.check(server.port)


def _check_full(server: WholeServer) -> None:
    with RawClient(server.port) as client:
        for shard in range(SHARDS):
            refused = _write_until_full(server, shard)
            assert (refused.status, refused.code) == (507, "storage_full"), refused
            assert int(refused.fields["retry-after"]) >= 1
            detail = refused.json["error"]["detail"]
            assert detail["free_bytes"] < detail["required_bytes"], detail
            assert not refused.closes
            # Requests that free space and requests that read are served.
            made = client.ask("POST", f"{_path(server, shard)}/diff", b'{"from_seq":0,"limit":5}')
            assert (made.status, len(made.json["records"])) == (200, 5)
        assert client.ask("GET", "/v0/health").status == 200
        assert client.ask("GET", "/v0/ready").status == 200
        assert client.ask("GET", "/v0/topics").status == 200


def test_writes_resume_within_seconds_of_free_space_even_after_a_kill(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        server = WholeServer(tmp_path, "--wal-file-bytes=1MiB", shards=SHARDS, data_dir=disk.path / "data")
        heads = {}
        with server:
            with RawClient(server.port) as client:
                for shard in range(SHARDS):
                    assert client.ask("POST", _path(server, shard), RECORD).status == 201
            disk.fill()
            for shard in range(SHARDS):
                assert _write_until_full(server, shard).code == "storage_full"
            resumed = _resume_seconds(server, disk)
            assert resumed < RESUME_SECONDS
            disk.fill()
            with RawClient(server.port) as client:
                for shard in range(SHARDS):
                    _write_until_full(server, shard)
                    deleted = client.ask("POST", f"{_path(server, shard)}/delete", b'{"before_seq":3}')
                    assert deleted.status == 200, deleted
                    heads[shard] = client.ask("GET", _path(server, shard)).json["head_seq"]
            server.kill()
        # A server that starts on a full disk serves the existing records.
        with server:
            with RawClient(server.port) as client:
                for shard in range(SHARDS):
                    state = client.ask("GET", _path(server, shard)).json
                    assert (state["head_seq"], state["earliest_seq"]) == (heads[shard], 3)
            restarted = _resume_seconds(server, disk)
            assert server.stop() == 0
    print(f"writes resumed after {resumed:.2f} s, and {restarted:.2f} s after a restart on the full disk")
    assert restarted < RESUME_SECONDS
