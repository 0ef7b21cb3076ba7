"""What tasks do about bytes that rot and files that go, without Spark around them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark.errors import DamagedRecord, SourceError
from spark.source.batch_reader import BatchQueryReader
from spark.source.columns import all_columns, arrow_schema
from spark.source.read_options import parse_options
from tests.harness.clients.topic_client import TopicClient
from tests.harness.server.whole_server import WholeServer
from tests.spark.conftest import SMALL_FILES

READS = 50


def reader_of(path: Path, topics: str = "orders", **options: str) -> BatchQueryReader:
    columns = all_columns(is_native=False, include_headers=False)
    parsed = parse_options({"path": str(path), "subscribe": topics, **options}, is_stream=False)
    return BatchQueryReader(parsed, arrow_schema(list(columns), columns))


def rows_of(reader: BatchQueryReader, partitions: Any = None) -> Iterator[tuple[int, bytes]]:
    for partition in reader.partitions() if partitions is None else partitions:
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            yield from zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WholeServer]:
    with WholeServer(tmp_path, *SMALL_FILES, "--reader-grace-ms=0", shards=1) as server:
        yield server


def seal_all(server: WholeServer, client: TopicClient, folder: Path) -> list[Path]:
    """The segments of a topic with 2,000 records, once they are in files."""
    client.fill("orders", 2000)
    topics = folder / "data" / "shards" / "00" / "topics"
    server.wait_for(lambda: len(list(topics.rglob("*.idx"))) >= 4, "segments are sealed")
    client.wait_until_durable("orders")
    server.stop()
    return sorted(topics.rglob("*.data"))


def test_damaged_bytes_are_named_or_skipped(
    server: WholeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = TopicClient(server.port)
    segments = seal_all(server, client, tmp_path)
    data = bytearray(segments[1].read_bytes())
    at = data.index(b'"n": 700,')
    data[at + 5] ^= 1
    segments[1].write_bytes(data)
    path = tmp_path / "data"
    with pytest.raises(DamagedRecord) as raised:
        list(rows_of(reader_of(path)))
    assert f'{segments[1]}, offset {at - 39}, seq 701 of topic "orders" is damaged: the checksum' in str(
        raised.value
    )
    kept = [seq for seq, _ in rows_of(reader_of(path, mode="PERMISSIVE"))]
    assert kept == [seq for seq in range(1, 2001) if seq != 701]
    assert "skipped damaged records: mode=PERMISSIVE  count=1" in caplog.text


def test_a_segment_that_was_cut_short_gives_what_is_left(
    server: WholeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = TopicClient(server.port)
    segments = seal_all(server, client, tmp_path)
    data = segments[1].read_bytes()
    segments[1].write_bytes(data[: data.index(b'"n": 900,')])
    path = tmp_path / "data"
    with pytest.raises(DamagedRecord, match=r"seg-0000000000000501.data, offset \d+, seqs 901 to 1000"):
        list(rows_of(reader_of(path)))
    kept = [seq for seq, _ in rows_of(reader_of(path, mode="PERMISSIVE"))]
    assert kept == [*range(1, 901), *range(1001, 2001)]
    assert "skipped damaged records: mode=PERMISSIVE  count=100" in caplog.text


def test_a_torn_tail_and_what_was_never_synced_are_not_read(server: WholeServer, tmp_path: Path) -> None:
    client = TopicClient(server.port)
    client.fill("orders", 100)
    client.wait_until_durable("orders")
    server.kill()
    path = tmp_path / "data"
    assert [seq for seq, _ in rows_of(reader_of(path))] == list(range(1, 101))
    log = max((path / "shards" / "00" / "wal").glob("wal-*.log"))
    data = bytearray(log.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    frame = data.index(b'"n": 99,')
    data[end : end + 80] = data[frame - 39 : frame + 41]
    log.write_bytes(data)
    assert [seq for seq, _ in rows_of(reader_of(path))] == list(range(1, 101))


def test_files_that_go_behind_a_plan_are_found_again(server: WholeServer, tmp_path: Path) -> None:
    path = tmp_path / "data"
    client = TopicClient(server.port)
    client.fill("orders", 1200)
    client.wait_until_durable("orders")
    reader = reader_of(path)
    partitions = reader.partitions()
    log = path / "shards" / "00" / "wal"
    before = {file.name for file in log.glob("wal-*.log")}
    # So much is written that every file which the plan names is dropped.
    while before & {file.name for file in log.glob("wal-*.log")}:
        client.fill("others", 2000, size=200)
    assert [seq for seq, _ in rows_of(reader, partitions)] == list(range(1, 1201))


def test_reads_beside_a_server_that_writes_are_durable_prefixes(server: WholeServer, tmp_path: Path) -> None:
    path, ends = tmp_path / "data", threading.Event()
    client = TopicClient(server.port)
    client.fill("orders", 500)
    client.wait_until_durable("orders")
    writer = threading.Thread(target=_write, args=(server.port, ends))
    writer.start()
    try:
        last = 0
        for _ in range(READS):
            durable = client.state("orders")["durable_seq"]
            seqs = [seq for seq, _ in rows_of(reader_of(path))]
            assert seqs == list(range(1, len(seqs) + 1))
            # What is known to be durable is said in the log behind it, at the latest when nothing comes.
            assert last <= len(seqs) <= client.state("orders")["durable_seq"]
            last = max(len(seqs), 500 if durable else 0)
    finally:
        ends.set()
        writer.join()
    client.wait_until_durable("orders")
    assert len(list(rows_of(reader_of(path)))) == client.state("orders")["head_seq"]


def _write(port: int, ends: threading.Event) -> None:
    client = TopicClient(port)
    while not ends.wait(0.01):
        client.fill("orders", 100)
        client.fill("passing", 100)
        client.call("passing", "delete", before_seq=client.state("passing")["head_seq"] - 50)


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"path: .* is not a data directory: it has no LAYOUT.json"):
        reader_of(tmp_path).partitions()
