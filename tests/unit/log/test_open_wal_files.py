from __future__ import annotations

import os
from pathlib import Path

import pytest

from topicsd.disk.fs import RealFs
from topicsd.disk.layout import ShardPaths
from topicsd.log.file_header import FileHeader, encode_file_header
from topicsd.log.frame import FrameType, encode_frame
from topicsd.log.walk import UnreadableLog, open_wal_files

HEADER = FileHeader(0, b"i" * 16, b"e" * 16, 1, 0, 65536, 0)


def other_version(header: bytes) -> bytes:
    payload = bytearray(header[38:-8])
    payload[8] = 99
    return encode_frame(FrameType.FILE_HEADER, payload=bytes(payload))


def test_a_file_of_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    paths = ShardPaths(str(tmp_path))
    os.mkdir(paths.wal)
    Path(paths.wal_file(1)).write_bytes(encode_file_header(HEADER))
    Path(paths.wal_file(9)).write_bytes(other_version(encode_file_header(HEADER)))
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UnreadableLog, match=r"wal-0000000000000009\.log: WAL format version 99"):
        open_wal_files(RealFs(), paths)
    assert len(os.listdir("/proc/self/fd")) == opened
