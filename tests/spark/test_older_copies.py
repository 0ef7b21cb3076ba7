"""A directory that is an older copy of the one that a checkpoint is of, without Spark around it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from spark.errors import DataLoss
from spark.source.columns import KAFKA, arrow_schema
from spark.source.read_options import parse_options
from spark.source.stream_reader import StreamReader
from tests.spark.test_damage_and_drops import reader_of
from tests.spark.test_drops_under_readers import RECORDS, filled

NEVER_HERE = r"never written here: the directory is an older copy, or the start is wrong"


def stream_of(path: Path, **options: str) -> StreamReader:
    parsed = parse_options({"path": str(path), "subscribe": "orders", **options}, is_stream=True)
    return StreamReader(parsed, arrow_schema(["offset"], KAFKA))


def place(path: Path, offset: int) -> dict[str, Any]:
    position = stream_of(path, startingOffsets="earliest").initialOffset()
    position["topics"]["orders"]["offset"] = offset
    return position


def test_a_checkpoint_beyond_an_older_copy_is_loss_and_nothing_is_passed_over(tmp_path: Path) -> None:
    """Else what is written from then on, under seqs that the query has behind it, would never be read."""
    shard = filled(tmp_path)
    shard.shard.close()
    path = tmp_path / "data"
    head = RECORDS
    end = stream_of(path).latestOffset(place(path, head + 1))
    assert end == place(path, head + 1)
    beyond = place(path, head + 11)
    message = rf'topic "orders": read from seq {head + 11}, .*: seqs {head + 1} to {head + 10} are gone'
    with pytest.raises(DataLoss, match=rf"{message} \({NEVER_HERE}\); set failOnDataLoss=false"):
        stream_of(path).latestOffset(beyond)
    # A batch that was planned on the newer one, and is planned again.
    with pytest.raises(DataLoss, match=rf"seqs {head + 1} to {head + 10} are gone \({NEVER_HERE}\)"):
        stream_of(path).partitions(place(path, head - 3), beyond)
    without = stream_of(path, failOnDataLoss="false")
    assert without.latestOffset(beyond) == beyond
    (part,) = without.partitions(place(path, head - 3), beyond)
    assert [batch["offset"].to_pylist() for batch in without.read(part)] == [list(range(head - 3, head + 1))]


def test_a_start_beyond_the_head_is_loss(tmp_path: Path) -> None:
    filled(tmp_path).shard.close()
    path = tmp_path / "data"
    for seq in (RECORDS + 1, RECORDS + 2):
        start = {"startingOffsets": f'{{"orders":{seq}}}'}
        assert reader_of(path, failOnDataLoss="false", **start).partitions() == []
        if seq > RECORDS + 1:
            with pytest.raises(DataLoss, match=rf"seq {RECORDS + 1} is gone \({NEVER_HERE}\)"):
                reader_of(path, **start).partitions()
            with pytest.raises(DataLoss, match=NEVER_HERE):
                stream_of(path, **start).initialOffset()
        else:
            assert reader_of(path, **start).partitions() == []
            assert stream_of(path, **start).initialOffset() == place(path, seq)


def test_what_is_written_to_an_older_copy_is_no_part_of_the_query(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    before = place(tmp_path / "data", 1)
    for n in range(7):
        shard.append("orders", n)
    shard.pass_time(1000)
    shard.checkpoint()
    shard.shard.close()
    end = stream_of(tmp_path / "data").latestOffset(before)
    assert end["topics"]["orders"]["offset"] == RECORDS + 8
    with pytest.raises(DataLoss, match=rf"seqs {RECORDS + 1} to {RECORDS + 7} are gone \({NEVER_HERE}\)"):
        stream_of(tmp_path / "copy").latestOffset(end)
