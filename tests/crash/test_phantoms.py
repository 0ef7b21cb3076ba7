"""What a write left that failed, or that a recovery cut off, never comes back, though its frames are intact.

Every frame here would pass its own checksum. What keeps it dead is that a batch is whole only with its
BatchEnd, and that the chain of a BatchEnd reaches over the batch before it.
"""

from __future__ import annotations

import errno
import os

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.frame import FrameDamage, FrameType, LogFrame, Record, encode_frame, parse_frame

PAYLOADS = [b'"phantom %d"' % number for number in range(10, 30)]


def _intact_frames(content: bytes) -> list[LogFrame]:
    """Every frame with a right checksum, wherever it stands."""
    frames = []
    end = len(content.rstrip(b"\0"))
    for at in range(end):
        try:
            frames.append(parse_frame(content, at, end))
        except FrameDamage:
            continue
    return frames


def _phantoms(one: OneShard) -> list[bytes]:
    """The payloads of refused records that stand intact in the files of the log."""
    frames = [frame for path in one.wal_files() for frame in _intact_frames(one.disk.read_file(path))]
    return [frame.payload for frame in frames if frame.payload in PAYLOADS]


def _fail_and_rewind(one: OneShard) -> None:
    """A batch of many records of which all but the end of the BatchEnd is written when the disk is full."""
    frames_bytes = len(PAYLOADS) * len(encode_frame(FrameType.APPEND, payload=PAYLOADS[0]))
    one.disk.fail("pwrite", 1, short=True, short_bytes=frames_bytes + BATCH_END_BYTES - 1)
    one.disk.fail("pwrite", 2, errno.ENOSPC)
    assert one.refused_append("t", *PAYLOADS).code == "storage_full"
    one.disk.clear_faults()
    one.pass_time(5100)


@pytest.mark.parametrize("end", ["kill", "restart", "reboot", "cut_power"])
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_batch_that_failed_and_was_rewound_never_comes_back(end: str, writes: int) -> None:
    one = OneShard()
    one.append("t", "before")
    one.put("t", durability="fsync")
    _fail_and_rewind(one)
    for number in range(writes):
        assert one.append("t", number).first_seq == 2 + number
    if writes < 3:
        assert _phantoms(one), "the case is not there: nothing of the failed batch is left"
    for _ in range(2):
        getattr(one, end)()
        assert [record.data for record in one.read("t").records] == [b'"before"', b"0", b"1", b"2"][
            : writes + 1
        ]
        assert one.state("t").head_seq == writes + 1


@pytest.mark.parametrize("newer", [b'"phantom XX"', b'"another length"'])
@pytest.mark.parametrize("end", ["kill", "reboot", "cut_power"])
def test_an_older_frame_behind_a_newer_one_never_comes_back(
    newer: bytes, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two histories of one file: the same epoch, the same first batch, and then not the same any more.
    monkeypatch.setattr(os, "urandom", lambda size: b"e" * size)
    older, one = OneShard(), OneShard()
    older.append("t", "first")
    older.append("t", PAYLOADS[0])
    older.append("t", PAYLOADS[1])
    one.append("t", "first")
    one.append("t", newer)
    (path,) = one.wal_files()
    written = one.disk.read_file(path)
    stop = len(written.rstrip(b"\0"))
    one.disk.write_file(path, written[:stop] + older.disk.read_file(path)[stop:])
    if len(newer) == len(PAYLOADS[0]):
        assert _phantoms(one) == [PAYLOADS[1]], "the case is not there: no whole frame stands behind"
    getattr(one, end)()
    assert [record.data for record in one.read("t").records] == [b'"first"', newer]
    assert one.append("t", "next").first_seq > 2
    one.kill()
    assert [record.data for record in _all_records(one)] == [b'"first"', newer, b'"next"']


def test_what_stood_behind_a_hole_stays_cut_off_when_the_log_has_gone_on() -> None:
    one = OneShard()
    one.append("t", "first")
    one.pass_time(60)
    for payload in PAYLOADS[:4]:
        one.append("t", payload)
    (path,) = one.wal_files()
    content = bytearray(one.disk.read_file(path))
    hole = content.index(PAYLOADS[1])
    content[hole : hole + len(PAYLOADS[1])] = bytes(len(PAYLOADS[1]))
    one.disk.write_file(path, bytes(content))
    # The machine went down: what was not synced may have holes.
    one.reboot()
    assert _phantoms(one)[-2:] == PAYLOADS[2:4], "the case is not there: nothing whole stands behind the hole"
    kept = [b'"first"', PAYLOADS[0]]
    assert [record.data for record in one.read("t").records] == kept
    for end in ("kill", "restart", "reboot"):
        one.append("t", end)
        kept.append(b'"%s"' % end.encode())
        getattr(one, end)()
        assert [record.data for record in _all_records(one)] == kept


def _all_records(one: OneShard) -> list[Record]:
    records: list[Record] = []
    cursor = 0
    while not (answer := one.read("t", cursor)).caught_up or answer.records:
        records += answer.records
        cursor = answer.next_from_seq
    return records
