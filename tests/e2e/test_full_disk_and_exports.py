"""A local disk that is full while segments are exported: writes are refused, exports continue, no loss.

Nothing but the server frees space: local records of what is exported leave the disk, and writes are accepted
again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.books.process_ledger import book_of, seed_of_this_run
from tests.harness.clients.writer_clients import Writers
from tests.harness.machine.small_disk import small_disk
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer

SHARDS = 2
DISK_BYTES = 96 << 20
RECORD_BYTES = 4000
PAUSE_SECONDS = 0.03
KEPT_BYTES = 2 << 20
FREED_BYTES = 4 << 20
FREE_SECONDS = 150.0
"""Local files of exported segments are dropped once a minute."""

pytestmark = pytest.mark.slow


def test_exports_continue_while_the_disk_is_full_and_nothing_is_lost(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    (tmp_path / "objects").mkdir()
    environ = {
        "TOPICS_STORE_URL": f"file://{tmp_path}/objects",
        "TOPICS_SEGMENT_MAX_EVENTS": "200",
        "TOPICS_CHECKPOINT_INTERVAL_MS": "500",
        "TOPICS_EXPORT_INTERVAL_MS": "2000",
        "TOPICS_HOT_RETAIN_SEGMENTS": "0",
        "TOPICS_READER_GRACE_MS": "0",
    }
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        WholeServer(
            tmp_path, "--wal-file-bytes=1MiB", shards=SHARDS, data_dir=disk.path / "data", environ=environ
        ) as server,
    ):
        book.make_topics(server.port)

        def exports() -> Any:
            return server.ask_json("GET", "/v0/store")["exports"]

        with Writers(server.port, book, seed, size=RECORD_BYTES, pause_seconds=PAUSE_SECONDS):
            server.wait_for(
                lambda: exports()["segments"] > 0 and exports()["waiting_segments"] > 0,
                "segments are exported",
                FREE_SECONDS,
            )
            disk.fill(KEPT_BYTES)
            server.wait_for(
                lambda: any(seen.status == 507 for seen in book.answers), "writes are refused", FREE_SECONDS
            )
        at_full = exports()
        print(f"full with {disk.free_bytes()} bytes free, {at_full}")
        assert at_full["waiting_segments"] > 0
        disk.fill()
        server.wait_for(lambda: exports()["waiting_segments"] == 0, "exports continue", FREE_SECONDS)
        assert exports()["segments"] > at_full["segments"]
        assert {(seen.status, seen.code) for seen in book.answers} == {(507, "storage_full")}
        book.check(server.port)
        full_at = time.monotonic()
        server.wait_for(lambda: disk.free_bytes() > FREED_BYTES, "space is free", FREE_SECONDS)
        print(f"{disk.free_bytes()} bytes free after {time.monotonic() - full_at:.0f} s, {exports()}")
        acked = book.acked_count
        with Writers(server.port, book, f"{seed} on", size=100):
            server.wait_for(lambda: book.acked_count > acked + 100, "writes are accepted")
        book.check(server.port)
        server.kill()
        server.start()
        book.check(server.port)
        assert server.stop() == 0
        assert run_here("verify", disk.path / "data").code == 0
