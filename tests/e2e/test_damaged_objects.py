"""Damage in an exported object: a server reports the exact range, and uses a local copy if there is one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer
from tests.harness.shard.one_shard import RealShard, record
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS

pytestmark = pytest.mark.slow

RECORDS = 60
SEGMENT_RECORDS = 10


def value(seq: int) -> str:
    return f"value-{seq:03d}"


class ExportedDirectory:
    """A data directory whose first segments are in a store only; `kept` has their former local files."""

    def __init__(self, folder: Path) -> None:
        self._cold, self.kept = folder / "cold", folder / "kept"
        self._cold.mkdir()
        self.data = folder / "data"
        shard = RealShard(
            self.data, cold_dir=str(self._cold), segment_max_events=SEGMENT_RECORDS, hot_retain_segments=1
        )
        for seq in range(1, RECORDS + 1):
            shard.append("t", record(value(seq)))
        shard.checkpoint()
        shutil.copytree(self.data, self.kept)
        for _ in range(3):
            shard.pass_time(ROUND_SECONDS * 1000 + 1)
            shard.append("other", 1)
            shard.checkpoint()
        shard.shard.close()

    def server(self) -> WholeServer:
        return WholeServer(self.data.parent, f"--store-url=file://{self._cold}", shards=1)

    def object_of(self, seq: int) -> Path:
        text = value(seq).encode()
        (path,) = [path for path in self._cold.rglob("*.data") if text in path.read_bytes()]
        return path

    def local_of(self, seq: int, root: Path) -> list[Path]:
        text = value(seq).encode()
        paths = (path for path in root.rglob("seg-*.data") if "trash" not in path.parts)
        return [path for path in paths if text in path.read_bytes()]

    def restore_local(self, seq: int) -> None:
        """Put the former local file back, as before it was dropped."""
        (kept,) = self.local_of(seq, self.kept)
        shutil.copy(kept, self.data / kept.relative_to(self.kept))


def damage(path: Path, *seqs: int) -> None:
    """Change a byte in each of these records."""
    data = bytearray(path.read_bytes())
    for seq in seqs:
        data[data.index(value(seq).encode())] ^= 1
    path.write_bytes(data)


def read(server: WholeServer, after_seq: int) -> Any:
    answer = server.ask("POST", "/v0/topics/t/diff", {"after_seq": after_seq, "limit": 1000})
    return answer.json


def values_of(answer: Any) -> dict[int, str]:
    return {one["$seq"]: one["data"] for one in answer["records"]}


def expected(first: int, last: int) -> dict[int, str]:
    return {seq: value(seq) for seq in range(first, last + 1)}


def test_damaged_records_of_an_object_are_reported_exactly(tmp_path: Path) -> None:
    exported = ExportedDirectory(tmp_path)
    assert exported.local_of(14, exported.data) == []
    damage(exported.object_of(14), 14, 15)
    with exported.server() as server:
        assert values_of(read(server, 0)) == expected(1, 13)
        error = read(server, 13)["error"]
        assert error["code"] == "corrupt_segment", error
        assert (error["detail"]["first_seq"], error["detail"]["last_seq"]) == (14, 15), error
        assert values_of(read(server, 15)) == expected(16, RECORDS)
    checked = run_here("verify", exported.data)
    assert (checked.code, "seqs 14 to 15 cannot be read" in checked.out) == (1, True), checked.out


def test_the_local_copy_of_a_damaged_object_is_used(tmp_path: Path) -> None:
    exported = ExportedDirectory(tmp_path)
    damage(exported.object_of(14), 14, 15)
    exported.restore_local(14)
    with exported.server() as server:
        assert values_of(read(server, 0)) == expected(1, RECORDS)
        assert server.ask("GET", "/v0/ready").status == 200


def test_the_object_of_a_damaged_local_copy_is_used(tmp_path: Path) -> None:
    exported = ExportedDirectory(tmp_path)
    exported.restore_local(14)
    (local,) = exported.local_of(14, exported.data)
    damage(local, 14, 15)
    with exported.server() as server:
        assert values_of(read(server, 0)) == expected(1, RECORDS)
