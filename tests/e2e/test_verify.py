"""`topicsd verify` names every problem with file and offset, and reports no false problem."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.contract.names import topic_id
from shared.contract.topic_config import TopicConfig
from tests.harness.output.command_run import run_here
from tests.harness.shard.data_dirs import DIRECTORIES, FLIP, flip, log_end, stop
from tests.harness.shard.one_shard import RealShard, record
from tests.harness.shard.wal_bytes import WalBytes, append_frame
from topicsd.disk.fs import RealFs
from topicsd.log.control_frame import ForwardCursor, LostRangeFrame, TopicCreate, encode_control
from topicsd.log.current_file import read_current, write_current
from topicsd.log.frame import FrameType, encode_frame
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog

ORDERS = topic_id("orders")
CREATE = encode_control(TopicCreate("orders", TopicConfig(), 300), topic_id=ORDERS, ts=0)
FIRST = "wal-0000000000000001.log"


def verified(path: Path, *more: object) -> Any:
    ran = run_here("verify", path, "--json", *more)
    assert ran.err == ""
    verdict = ran.json
    assert ran.code == (0 if verdict["is_fine"] else 1)
    return verdict


def problems(path: Path) -> list[Any]:
    return [problem for shard in verified(path)["shards"] for problem in shard["problems"]]


def notes(path: Path) -> list[str]:
    return [note for shard in verified(path)["shards"] for note in shard["notes"]]


BROKEN = {"damaged", "without_current", "with_a_damaged_current", "cut_from_outside"}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_directories_of_the_program_pass_and_damaged_ones_fail(tmp_path: Path, name: str) -> None:
    DIRECTORIES[name](tmp_path)
    text = run_here("verify", tmp_path)
    assert verified(tmp_path)["is_fine"] == (name not in BROKEN)
    assert text.code == (1 if name in BROKEN else 0)
    assert ("WRONG" in text.out or "harmless" in text.out) == (name in BROKEN)


def test_the_summary_counts_what_was_read(tmp_path: Path) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    verdict = verified(tmp_path)
    (rows,) = [run_here("inspect", tmp_path, "--frames", "--json").json_lines]
    counted = {
        kind: sum(row["type"] == kind for row in rows) for kind in ("file_header", "batch_end", "append")
    }
    assert verdict["files"] == counted["file_header"] == 3
    assert verdict["batches"] == counted["batch_end"]
    assert verdict["records"] == counted["append"] == sum(range(1, 13))
    assert verdict["frames"] == len(rows) - counted["batch_end"] - counted["file_header"]
    assert verdict["bytes"] == sum(row["size"] for row in rows)
    last = run_here("verify", tmp_path).out.splitlines()[-1]
    assert re.fullmatch(
        r"all is well: read 3 shards, 3 files, \d+ batches, \d+ frames, 78 records, [\d.]+ KiB", last
    )


def test_the_summary_of_harmless_damage_says_that_no_data_is_lost(tmp_path: Path) -> None:
    DIRECTORIES["with_a_damaged_current"](tmp_path)
    ran = run_here("verify", tmp_path)
    assert ran.code == 1
    assert "WRONG" not in ran.out
    assert re.fullmatch(
        r"1 harmless finding, no data is lost: "
        r"read 1 shard, 1 file, \d+ batches, \d+ frames, \d+ records, [\d.]+ KiB",
        ran.out.splitlines()[-1],
    )


def small(path: Path) -> RealShard:
    shard = RealShard(path)
    shard.append("orders", record({"n": 1}, tag="new"), record({"n": 2}))
    shard.append("bills", "x")
    shard.append("orders", record({"n": 3}))
    return shard


def stopped(path: Path) -> RealShard:
    shard = small(path)
    stop(shard)
    return shard


def died(path: Path) -> RealShard:
    shard = small(path)
    shard.stop_dead()
    return shard


def synced_end(rows: list[Any]) -> int:
    """Return the offset up to which the log proves that it was synced."""
    return max(int(row["control"]["synced"]) for row in rows if row["type"] == "batch_end")


@pytest.mark.slow
@pytest.mark.parametrize("build", [stopped, died])
def test_every_byte_that_is_changed_is_found_and_named(
    tmp_path: Path, build: Callable[[Path], RealShard]
) -> None:
    real = build(tmp_path)
    (wal_file,) = real.wal_files()
    end = log_end(real)
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    proven = end if build is stopped else synced_end(rows)
    assert proven > 118
    for offset in range(end):
        flip(wal_file, offset)
        verdict = verified(tmp_path)
        flip(wal_file, offset)
        (row,) = [row for row in rows if row["offset"] <= offset < row["offset"] + row["size"]]
        said = verdict["shards"][0]
        if verdict["is_fine"]:
            assert offset >= proven, f"the change at {offset} went unnoticed"
            assert any(f"offset {row['offset']} of {FIRST}" in note for note in said["notes"]), said["notes"]
            continue
        (problem,) = said["problems"]
        assert (problem["file"], problem["offset"]) == (FIRST, row["offset"])
        in_payload = row["type"] == "append" and offset >= row["offset"] + 38
        if in_payload:
            assert (problem["topic"], problem["seq"]) == (row["topic"], row["seq"])
        elif problem["seq"] is not None:
            assert problem["seq"] == row.get("seq"), f"a wrong seq for the change at {offset}"
    assert verified(tmp_path)["is_fine"]


@pytest.mark.slow
@pytest.mark.parametrize("build", [stopped, died])
def test_a_directory_starts_if_and_only_if_verify_passes(
    tmp_path: Path, build: Callable[[Path], RealShard]
) -> None:
    end = log_end(build(tmp_path / "original"))
    for offset in range(0, end, 23):
        path = tmp_path / "copy"
        shutil.copytree(tmp_path / "original", path)
        flip(path / "shards/00/wal" / FIRST, offset)
        if verified(path)["is_fine"]:
            stop(RealShard(path))
            assert verified(path)["is_fine"]
        else:
            with pytest.raises((RecoveryRefused, UnreadableLog)):
                RealShard(path)
        shutil.rmtree(path)


def test_bytes_after_the_end_are_a_note(tmp_path: Path) -> None:
    real = stopped(tmp_path)
    end = log_end(real)
    flip(real.wal_files()[0], end + 100)
    assert problems(tmp_path) == []
    (note,) = notes(tmp_path)
    assert note.startswith(f"an earlier start cut off 101 bytes at offset {end} of {FIRST}")
    real = died(tmp_path / "died")
    end = log_end(real)
    flip(real.wal_files()[0], end)
    assert problems(tmp_path / "died") == []
    assert notes(tmp_path / "died")[0].startswith(f"torn tail: 1 byte at offset {end} of {FIRST} are no")


def test_whole_batches_after_a_tear_are_counted(tmp_path: Path) -> None:
    shard = RealShard(tmp_path)
    shard.send_append("orders", 0)
    shard.settle()
    for number in range(1, 4):
        # Written, but not synced.
        shard.send_append("orders", number)
        shard.loop.run_until_idle()
    shard.stop_dead()
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    first = [row for row in rows if row["type"] == "append"][1]
    flip(shard.wal_files()[0], first["offset"] + 40)
    assert problems(tmp_path) == []
    said = notes(tmp_path)
    assert f"at offset {first['offset']} of {FIRST}: the checksum does not match" in said[1]
    assert "the torn tail contains 2 whole batches with 2 records, which a start cuts off" in said


def test_each_damaged_place_is_named(tmp_path: Path) -> None:
    real = DIRECTORIES["of_many_files"](tmp_path)
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    appends = [row for row in rows if row["type"] == "append"]
    hit = appends[3], appends[7], appends[25]
    for row in hit:
        flip(os.path.join(real.paths.wal, row["file"]), row["offset"] + 50)
    damaged = problems(tmp_path)
    assert [(one["file"], one["offset"], one["topic"], one["seq"]) for one in damaged] == [
        (row["file"], row["offset"], "orders", row["seq"]) for row in hit
    ]
    text = run_here("verify", tmp_path)
    for row in hit:
        place = f'{row["file"]}, at offset {row["offset"]}, seq {row["seq"]} of topic "orders"'
        assert place in " ".join(text.out.split())
    assert f"3 problems found: read 1 shard, {len(real.wal_files())} files" in text.out
    assert verified(tmp_path)["records"] == len(appends) - 3, "whole records after the damage are read"


def test_a_damaged_header_of_a_later_file_is_named(tmp_path: Path) -> None:
    real = DIRECTORIES["of_many_files"](tmp_path)
    flip(real.wal_files()[1], 60)
    (problem,) = problems(tmp_path)
    assert (problem["file"], problem["offset"]) == (os.path.basename(real.wal_files()[1]), 0)
    assert "the file header is damaged" in problem["what"]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    real = stopped(tmp_path)
    end = log_end(real)
    os.truncate(real.wal_files()[0], end - 1)
    first, second = problems(tmp_path)
    assert first["file"] == FIRST
    assert f"CURRENT records a clean end at {end}" in first["what"]
    assert f"has {end - 1} of its 65536 bytes" in second["what"]


def test_zeros_where_the_log_was_are_found(tmp_path: Path) -> None:
    real = stopped(tmp_path)
    end = log_end(real)
    with open(real.wal_files()[0], "r+b") as file:
        file.seek(118)
        file.write(bytes(end - 118))
    (problem,) = problems(tmp_path)
    assert (problem["file"], problem["offset"]) == (FIRST, 118)


def missing_first(real: RealShard) -> str:
    os.unlink(real.wal_files()[0])
    return "the log does not reach back to its start, and there is no snapshot to start from"


def missing_middle(real: RealShard) -> str:
    os.unlink(real.wal_files()[1])
    return f"are missing, and {os.path.basename(real.wal_files()[1])} is the next file"


def missing_last(real: RealShard) -> str:
    name = os.path.basename(real.wal_files()[-1])
    os.unlink(real.wal_files()[-1])
    return f"CURRENT names {name}, which is missing"


def of_another_directory(real: RealShard) -> str:
    wal = WalBytes(instance=b"other-instance--")
    Path(real.wal_files()[0]).write_bytes(wal.padded())
    return "belongs to shard 0 of instance"


def of_another_version(real: RealShard) -> str:
    header = bytes(WalBytes().data)
    payload = bytearray(header[38:-8])
    payload[8] = 9
    Path(real.wal_files()[0]).write_bytes(encode_frame(FrameType.FILE_HEADER, payload=bytes(payload)))
    return "WAL format version 9; this program reads version 1"


@pytest.mark.parametrize(
    "change", [missing_first, missing_middle, missing_last, of_another_directory, of_another_version]
)
def test_files_that_do_not_form_one_log_are_named(tmp_path: Path, change: Callable[[RealShard], str]) -> None:
    said = change(DIRECTORIES["of_many_files"](tmp_path))
    rows = problems(tmp_path)
    assert any(said in one["what"] for one in rows), rows
    assert run_here("inspect", tmp_path).code == 1


def crafted(path: Path, *frames: bytes, **fields: Any) -> None:
    """Write a log with a whole batch of frames that no shard would write."""
    real = RealShard(path)
    real.append("other", 1)
    stop(real)
    wal = WalBytes()
    wal.batch(*frames, **fields)
    Path(real.wal_files()[0]).write_bytes(wal.padded())
    current = read_current(real.fs, real.paths.current)
    assert current is not None
    write_current(real.fs, real.paths.current, msgspec.structs.replace(current, end=wal.end))


def orders(seq: int, **fields: Any) -> bytes:
    return append_frame(seq, topic_id=ORDERS, **fields)


def late(seq: int, ts: int) -> bytes:
    return encode_frame(FrameType.APPEND, topic_id=ORDERS, seq=seq, ts=ts, payload=b"1")


def broken(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ FLIP,))


AT = 118 + len(CREATE)


def copy(seq: int, ts: int) -> bytes:
    """Return a reference to the first record after the creation."""
    return encode_control(ForwardCursor("r", 1, 1, seq, 1, [AT], [47]), topic_id=ORDERS, ts=ts)


CRAFTED: dict[str, tuple[list[bytes], int, str | None, int | None, str]] = {
    "a seq is left out": ([CREATE, orders(1), orders(3)], AT + 47, None, 3, "seq 3 of topic"),
    "a record of no topic": ([append_frame(1)], 118, None, 1, "a topic that does not exist"),
    "a topic is made twice": ([CREATE, CREATE], AT, None, None, "which already exists"),
    "a frame's own checksum": ([CREATE, broken(orders(1))], AT, None, None, "the checksum does not match"),
    "time goes back": ([CREATE, late(1, 9), late(2, 8)], AT + 47, None, 2, "its time 8 is before"),
    "time goes back to copies": (
        [CREATE, late(1, 9), copy(2, 8)],
        AT + 47,
        None,
        None,
        "its time 8 is before",
    ),
    "time goes back from copies": (
        [CREATE, late(1, 8), copy(2, 9), late(3, 8)],
        AT + 47 + len(copy(2, 9)),
        None,
        3,
        "its time 8 is before",
    ),
    "a meta that is none": (
        [CREATE, encode_frame(FrameType.APPEND, topic_id=ORDERS, seq=1, payload=b"1", has_meta=True)],
        AT,
        None,
        1,
        "meta length",
    ),
    "a control frame without its payload": (
        [encode_frame(FrameType.HEAD_WATERMARK, topic_id=ORDERS, payload=b"\xc1")],
        118,
        None,
        None,
        "the payload of a HEAD_WATERMARK frame is damaged",
    ),
    "a type of a later time": (
        [CREATE, encode_frame(FrameType.CHECKPOINT_MARK, topic_id=ORDERS, payload=b"")],
        AT,
        None,
        None,
        "frame type 8 has no control payload",
    ),
    "a control frame with a seq": (
        [CREATE, encode_frame(FrameType.HEAD_WATERMARK, topic_id=ORDERS, seq=5, payload=b"\x91\x01")],
        AT,
        None,
        5,
        "HEAD_WATERMARK frame has the seq 5",
    ),
    "another name's id": (
        [encode_control(TopicCreate("bills", TopicConfig(), 1), topic_id=ORDERS, ts=0)],
        118,
        None,
        None,
        'the topic "bills" is created with an id that does not match its name',
    ),
    "a lost range elsewhere": (
        [CREATE, encode_control(LostRangeFrame(5, 9, "crash"), topic_id=ORDERS, ts=0)],
        AT,
        None,
        None,
        "loses seqs 5 to 9",
    ),
}


@pytest.mark.parametrize(("frames", "offset", "topic", "seq", "said"), CRAFTED.values(), ids=CRAFTED)
def test_an_impossible_whole_batch_is_named(
    tmp_path: Path, frames: list[bytes], offset: int, topic: str | None, seq: int | None, said: str
) -> None:
    crafted(tmp_path, *frames)
    problem = problems(tmp_path)[0]
    assert said in problem["what"]
    assert (problem["file"], problem["offset"], problem["seq"]) == (FIRST, offset, seq)
    text = " ".join(run_here("verify", tmp_path).out.split())
    assert f"{FIRST}, at offset {offset}" in text


def test_a_topic_that_existed_before_the_batch_is_named(tmp_path: Path) -> None:
    real = RealShard(tmp_path)
    real.append("other", 1)
    stop(real)
    wal = WalBytes()
    wal.batch(CREATE, orders(1))
    begin, _ = wal.batch(orders(3))
    Path(real.wal_files()[0]).write_bytes(wal.padded())
    problem = problems(tmp_path)[0]
    assert (problem["topic"], problem["seq"], problem["offset"]) == ("orders", 3, begin)
    assert 'is seq 3 of topic "orders", whose head is 1' in problem["what"]


def test_a_batch_end_with_a_wrong_count_is_named(tmp_path: Path) -> None:
    crafted(tmp_path, CREATE, orders(1), ordinal=9)
    assert "the batch has 2 frames, but its BatchEnd records 8" in problems(tmp_path)[0]["what"]


def test_a_batch_end_with_a_position_ahead_of_the_log_is_named(tmp_path: Path) -> None:
    crafted(tmp_path, CREATE, synced=200)
    assert "synced offset of 200, which is after its own start" in problems(tmp_path)[0]["what"]


def test_whole_frames_in_the_wrong_place_are_named(tmp_path: Path) -> None:
    """Write a batch with another chain, as of an older run or another file."""
    real = RealShard(tmp_path)
    real.append("other", 1)
    stop(real)
    wal = WalBytes()
    wal.batch(CREATE, orders(1))
    begin, _ = wal.batch(orders(2), chain=12345)
    Path(real.wal_files()[0]).write_bytes(wal.padded())
    current = read_current(real.fs, real.paths.current)
    assert current is not None
    write_current(real.fs, real.paths.current, msgspec.structs.replace(current, end=wal.end))
    problem = problems(tmp_path)[0]
    assert problem["offset"] == begin
    assert "are whole frames, but not the expected batch" in problem["what"]


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0, 1, 37, 45, 70_000_000])
def test_an_impossible_frame_length_is_rejected(tmp_path: Path, length: int) -> None:
    real = stopped(tmp_path)
    rows = run_here("inspect", tmp_path, "--frames", "--json").json_lines
    row = next(row for row in rows if row["type"] == "append" and row["seq"] == 2)
    with open(real.wal_files()[0], "r+b") as file:
        file.seek(row["offset"])
        file.write(length.to_bytes(4, "little"))
    (problem,) = problems(tmp_path)
    assert (problem["offset"], problem["topic"], problem["seq"]) == (row["offset"], "orders", 2)
    assert re.search("frame length|the checksum does not match", problem["what"])


def test_a_topic_in_the_wrong_shard_is_noted(tmp_path: Path) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    report = run_here("inspect", tmp_path, "--topic", "topic-1", "--json").json
    wrong = (report["shard"] + 1) % 3
    shard = RealShard(tmp_path, shard=wrong)
    shard.append("topic-1", "elsewhere")
    stop(shard)
    assert verified(tmp_path)["is_fine"]
    assert [
        note
        for note in notes(tmp_path)
        if note.startswith('topic "topic-1" is in this shard, but it belongs')
    ]


def test_foreign_files_are_noted(tmp_path: Path) -> None:
    real = stopped(tmp_path)
    (tmp_path / "shards/01").mkdir()
    Path(real.paths.wal, "notes.txt").write_text("x")
    verdict = verified(tmp_path)
    assert verdict["is_fine"]
    assert verdict["notes"] == ["shards/01: LAYOUT.json does not name this shard"]
    assert "notes.txt in wal/ is not a file of topicsd" in verdict["shards"][0]["notes"]
    assert "shards/01" in run_here("inspect", tmp_path).out


def test_only_the_selected_shard_is_read(tmp_path: Path) -> None:
    real = DIRECTORIES["of_many_shards"](tmp_path)
    flip(real.wal_files()[0], 200)
    assert run_here("verify", tmp_path).code == 1
    assert run_here("verify", tmp_path, "--shard", 0).code == 1
    assert run_here("verify", tmp_path, "--shard", 1).code == 0
    assert "read 1 shard, 1 file" in run_here("verify", tmp_path, "--shard", 1).out


def test_a_read_error_is_named_with_its_file_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    pread = RealFs.pread
    bad = (tmp_path / "shards/01/wal" / FIRST).stat().st_ino

    def sick(self: RealFs, fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == bad and offset >= 118:
            raise OSError(5, "Input/output error")
        return pread(self, fd, size, offset)

    monkeypatch.setattr(RealFs, "pread", sick)
    verdict = verified(tmp_path)
    assert [len(shard["problems"]) for shard in verdict["shards"]] == [0, 1, 0]
    (problem,) = problems(tmp_path)
    assert problem["file"] == f"{tmp_path}/shards/01/wal/{FIRST} at offset 118"
    assert problem["what"] == "read failed: Input/output error"
