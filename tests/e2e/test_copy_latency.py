"""Copies on another shard appear milliseconds after their records, not after a background sync."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

COPIES = 41
# Background syncs run every 50 ms: without a sync of their own, copies would take 25 ms on average.
MEDIAN_SECONDS_MAX = 0.015


def test_a_long_poll_on_another_shard_sees_a_copy_within_milliseconds(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=2) as server:
        source, dest = server.topic_of(0, "source"), server.topic_of(1, "dest")
        with RawClient(server.port) as writer, RawClient(server.port) as reader:
            made = writer.ask("PUT", "/v0/routers/r", {"source": source, "dest": dest})
            assert made.status == 201, made
            seconds = []
            for number in range(COPIES):
                began = time.monotonic()
                appended = writer.ask("POST", f"/v0/topics/{source}", {"records": [{"data": number}]})
                assert appended.status in (200, 201), appended
                poll: dict[str, Any] = {"from_seq": number, "wait_ms": 10_000}
                records = reader.ask("POST", f"/v0/topics/{dest}/diff", poll).json["records"]
                seconds.append(time.monotonic() - began)
                assert [one["data"] for one in records] == [number]
        print(f"median {median(seconds) * 1000:.1f} ms, most {max(seconds) * 1000:.1f} ms")
        assert median(seconds) < MEDIAN_SECONDS_MAX
        assert server.stop() == 0
