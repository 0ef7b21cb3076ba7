"""`topicsd inspect --frames`: every frame of the log, in order, as rows and as JSON."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.contract.topic_config import TopicConfig
from tests.golden.make_golden import GOLDEN
from tests.harness.output.command_run import run_here
from tests.harness.shard.data_dirs import DIRECTORIES, flip, stop
from tests.harness.shard.one_shard import RealShard, record
from tests.harness.shard.wal_bytes import WalBytes, append_frame
from topicsd.log.control_frame import TopicCreate, encode_control

WAL_FILE_BYTES = 64 << 10


def frames(path: Path, *more: object) -> list[Any]:
    return run_here("inspect", path, "--frames", "--json", *more).json_lines


def test_every_frame_begins_where_the_previous_one_ends(tmp_path: Path) -> None:
    DIRECTORIES["of_many_files"](tmp_path)
    rows = frames(tmp_path)
    by_file: dict[str, list[Any]] = {}
    for row in rows:
        by_file.setdefault(row["file"], []).append(row)
    assert len(by_file) > 2
    for of_file in by_file.values():
        assert of_file[0]["type"] == "file_header"
        offset = 0
        for row in of_file:
            assert row["offset"] == offset
            offset += row["size"]
    assert [row["ordinal"] for row in rows if "ordinal" in row] == list(range(1, rows[-1]["ordinal"] + 1))


def test_the_fields_of_each_frame_type(tmp_path: Path) -> None:
    DIRECTORIES["clean"](tmp_path)
    rows = frames(tmp_path)
    by_type: dict[str, list[Any]] = {}
    for row in rows:
        by_type.setdefault(row["type"], []).append(row)
    first = by_type["append"][0]
    assert (first["topic"], first["seq"], first["tag"], first["node"]) == ("orders", 1, "new", "n1")
    assert (first["data_bytes"], first["meta_bytes"]) == (len('{"n":1}'), len('{"k":1}'))
    assert (first["ts"], first["time"]) == (1_700_000_000_000, "2023-11-14T22:13:20.000Z")
    created = {row["topic"]: row["control"] for row in by_type["topic_create"]}
    assert created["audit"]["config"] == {"durability": "fsync", "cap_records": 2}
    assert created["orders"]["config"] == {}
    assert all(row["durable"] for row in by_type["append"] if row["topic"] == "audit")
    (deleted,) = by_type["topic_delete"]
    epochs = [row["ordinal"] for row in by_type["topic_create"] if row["topic"] == "live"]
    assert deleted["control"]["epoch"] == epochs[0]
    assert re.fullmatch("[0-9a-f]{32}", by_type["idempotency"][0]["control"]["key"])
    assert by_type["delete"][0]["control"]["tag"] == "new"
    assert by_type["batch_end"][0]["control"]["frames"] == by_type["batch_end"][0]["ordinal"] - 1


def test_text_rows_and_json_rows_agree(tmp_path: Path) -> None:
    DIRECTORIES["clean"](tmp_path)
    rows = run_here("inspect", tmp_path, "--frames").out.splitlines()
    assert rows[0] == f"shard 00  {tmp_path}/shards/00"
    assert rows[1].split()[:5] == ["ORDINAL", "FILE", "OFFSET", "SIZE", "TYPE"]
    json_rows = frames(tmp_path)
    assert len(rows) == 2 + len(json_rows)
    for text, row in zip(rows[2:], json_rows, strict=True):
        cells = text.split()
        assert cells[:6] == [
            str(row.get("ordinal", "-")),
            row["file"],
            str(row["offset"]),
            str(row["size"]),
            row["type"],
            row["time"],
        ]
        assert cells[6:8] == [str(row.get("seq", "-")), row.get("topic", "-")]


def test_the_listing_can_be_limited_to_one_topic(tmp_path: Path) -> None:
    DIRECTORIES["clean"](tmp_path)
    rows = frames(tmp_path, "--topic", "audit")
    assert rows == [row for row in frames(tmp_path) if row.get("topic") == "audit"]
    assert [row["seq"] for row in rows if row["type"] == "append"] == [1, 2, 3]
    missing = run_here("inspect", tmp_path, "--frames", "--topic", "missing")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == f'topicsd: there is no topic "missing" in {tmp_path}\n'


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_topic_without_frames_in_the_log_is_reported(tmp_path: Path, options: tuple[str, ...]) -> None:
    shard = RealShard(tmp_path, wal_file_bytes=WAL_FILE_BYTES)
    shard.put("orders", durability="fsync")
    shard.append("orders", 1, 2)
    # The log reaches back to the snapshot before the last one.
    for _ in range(3):
        shard.append("other", record("x" * WAL_FILE_BYTES))
        shard.checkpoint()
    stop(shard)
    assert "orders" not in {row.get("topic") for row in frames(tmp_path)}
    ran = run_here("inspect", tmp_path, "--frames", "--topic", "orders", *options)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == 'topicsd: topic "orders" has no frames in the log; its records are in segments\n'


def test_frames_of_a_topic_come_from_the_shard_that_has_it(tmp_path: Path) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    for number in range(12):
        rows = frames(tmp_path, "--topic", f"topic-{number}")
        assert [row["seq"] for row in rows if row["type"] == "append"] == list(range(1, number + 2))
    assert {row["shard"] for row in frames(tmp_path)} == {0, 1, 2}
    assert {row["shard"] for row in frames(tmp_path, "--shard", 1)} == {1}


def test_an_earlier_topic_of_the_same_name_is_listed_too(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    shard.append("orders", 1)
    shard.delete_topic("orders")
    shard.append("orders", 2)
    stop(shard)
    kinds = [row["type"] for row in frames(tmp_path, "--topic", "orders") if row["type"] != "head_watermark"]
    assert kinds == ["topic_create", "append", "topic_delete", "topic_create", "append"]


def test_the_listing_stops_at_damage_and_reports_it(tmp_path: Path) -> None:
    real = DIRECTORIES["of_many_files"](tmp_path)
    whole = frames(tmp_path)
    flip(real.wal_files()[1], 2000)
    ran = run_here("inspect", tmp_path, "--frames", "--json")
    assert ran.code == 1
    assert ran.json_lines == whole[: len(ran.json_lines)]
    assert re.match(r"topicsd: shard 00: wal-\d{16}\.log is damaged at offset \d+, before synced", ran.err)


def test_a_torn_tail_is_reported_after_the_rows(tmp_path: Path) -> None:
    DIRECTORIES["torn"](tmp_path)
    ran = run_here("inspect", tmp_path, "--frames")
    assert ran.code == 0
    assert ran.err.startswith("topicsd: shard 00: torn tail: ")


@pytest.mark.parametrize("json", [("--json",), ()])
def test_a_frame_that_was_written_damaged_ends_the_listing(tmp_path: Path, json: tuple[str, ...]) -> None:
    stop(RealShard(tmp_path))
    wal = WalBytes()
    create = encode_control(TopicCreate("orders", TopicConfig(), 9), topic_id=topic_id("orders"), ts=0)
    broken = bytearray(append_frame(1, topic_id=topic_id("orders")))
    broken[-1] ^= 1
    wal.batch(create, bytes(broken))
    Path(tmp_path / "shards/00/wal/wal-0000000000000001.log").write_bytes(wal.padded())
    ran = run_here("inspect", tmp_path, "--frames", *json)
    assert ran.code == 1
    assert f"the frame at offset {118 + len(create)}: the checksum does not match" in ran.err


def test_a_listing_without_frames_is_empty(tmp_path: Path) -> None:
    DIRECTORIES["untouched"](tmp_path)
    assert run_here("inspect", tmp_path, "--frames") == (0, "", "")


def test_a_large_record_is_one_row(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    shard.append("orders", record("x" * 300_000))
    stop(shard)
    (row,) = [row for row in frames(tmp_path) if row["type"] == "append"]
    assert row["data_bytes"] == 300_002
    assert "data=293KiB" in run_here("inspect", tmp_path, "--frames").out


def test_records_of_bytes_are_marked(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "wal-format-1-bytes" / "data", data)
    rows = [row for row in frames(data) if row["type"] == "append" and row["topic"] == "images"]
    assert [(row.get("is_bytes", False), row["data_bytes"]) for row in rows] == [
        (True, 256),
        (False, 1),
        (True, 256),
        (True, 0),
        (True, 2),
        (False, 2),
        (True, 3000),
    ]
    assert run_here("verify", data).code == 0
