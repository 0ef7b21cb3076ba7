"""Backup points of a server under load: no shard is ahead of another one at any of them.

Clients write to a topic, and after the answer to a topic of another shard. A point that has the second write
without the first is not of one moment. The logs themselves are read up to each point.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.clients.raw_client import RawClient
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer, name_on
from topicsd.disk.layout import shard_paths

pytestmark = pytest.mark.slow

SHARDS: Final = 2
PAIRS: Final = 4
POINTS: Final = 150
# One file holds all, so that a point is a place in it; a checkpoint would drop it.
FLAGS: Final = ("--wal-file-bytes=512MiB", "--checkpoint-interval-ms=3600000")
_RECORD: Final = re.compile(rb'"pair-(\d+)-(first|second)-(\d+)"')


class Pair:
    """A client that writes each number to its first topic, and then to its second one on another shard."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.first_shard = number % SHARDS
        self.second_shard = 1 - self.first_shard
        self.topics = [
            (name_on(self.first_shard, SHARDS, f"a{number}-"), "first"),
            (name_on(self.second_shard, SHARDS, f"b{number}-"), "second"),
        ]
        self.count = 0
        self._port = port

    def write(self, ends: threading.Event) -> None:
        with RawClient(self._port) as one, RawClient(self._port) as other:
            while not ends.is_set():
                for client, (topic, place) in zip((one, other), self.topics, strict=True):
                    data = f"pair-{self.number}-{place}-{self.count + 1}"
                    answer = client.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": data}]})
                    assert answer.status in (200, 201), answer
                self.count += 1


@contextmanager
def writing(pairs: list[Pair]) -> Iterator[None]:
    ends = threading.Event()
    threads = [threading.Thread(target=pair.write, args=(ends,)) for pair in pairs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def counts_until(data: bytes, offset: int) -> dict[tuple[int, str], int]:
    """Return the last number of each pair and place in a log up to an offset."""
    return {(int(match[1]), match[2].decode()): int(match[3]) for match in _RECORD.finditer(data, 0, offset)}


def check_point(point: list[dict[str, int]], logs: list[bytes]) -> int:
    """Check that no second write is there without its first one; return how many first ones are alone."""
    counts = [counts_until(log, one["offset"]) for log, one in zip(logs, point, strict=True)]
    alone = 0
    for number in range(PAIRS):
        shard = number % SHARDS
        first, second = counts[shard].get((number, "first"), 0), counts[1 - shard].get((number, "second"), 0)
        assert second <= first, (
            f"pair {number}: write {second} of shard {1 - shard} is in, {first} of {shard}"
        )
        assert first <= second + 1
        alone += first - second
    return alone


def test_no_backup_point_has_a_write_without_the_one_acknowledged_before_it(tmp_path: Path) -> None:
    points: list[Any] = []
    with WholeServer(tmp_path, *FLAGS, shards=SHARDS) as server:
        pairs = [Pair(number, server.port) for number in range(PAIRS)]
        with writing(pairs):
            time.sleep(0.3)
            while len(points) < POINTS:
                points.append(server.ask_json("POST", "/v0/backup-points")["shards"])
                time.sleep(0.01)
        assert all(pair.count > POINTS for pair in pairs), [pair.count for pair in pairs]
        server.kill()
    logs = []
    for shard in range(SHARDS):
        (file,) = Path(shard_paths(str(tmp_path / "data"), shard).wal).glob("wal-*.log")
        logs.append(file.read_bytes())
        assert len({point[shard]["file"] for point in points}) == 1
    alone = sum(check_point(point, logs) for point in points)
    print(f"{len(points)} points, {alone} first writes without their second one")
    # Else the writes would not have been in the middle of anything.
    assert alone > POINTS / 10


def test_no_backup_has_a_write_without_the_one_acknowledged_before_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ids = []
    with WholeServer(tmp_path, "--checkpoint-interval-ms=300", shards=SHARDS) as server:
        pairs = [Pair(number, server.port) for number in range(PAIRS)]
        with writing(pairs):
            for _ in range(3):
                time.sleep(0.2)
                made = run_here("backup", "create", tmp_path / "data", "--to", tmp_path / "store", "--json")
                assert made.code == 0, made.err
                ids.append(made.json["id"])
        server.kill()
    for number, backup_id in enumerate(ids):
        target = tmp_path / f"restored{number}"
        restored = run_here("backup", "restore", tmp_path / "store", backup_id, target / "data")
        assert restored.code == 0, restored.err
        with WholeServer(target, shards=SHARDS) as server:
            for pair in pairs:
                heads = [server.ask_json("GET", f"/v0/topics/{name}")["head_seq"] for name, _ in pair.topics]
                assert heads[1] <= heads[0] <= heads[1] + 1, (backup_id, pair.topics, heads)
            server.kill()
