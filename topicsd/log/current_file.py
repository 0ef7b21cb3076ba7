"""The CURRENT file: which WAL file a shard writes, and how its last process ended.

One line of JSON, padded with spaces to a sector and checksummed, so that it can be overwritten in place.
After an unclean stop, a head that may have lost its tail resumes at its ceiling. CURRENT records when that is
not needed:

* `clean`: the log ended at `file` and `end`, all of it synced, and the log's heads are exact.
* `running`: on the same boot, with the same device and inodes as written here, only the process died and
  the page cache kept everything. A copy of the directory has other inodes and proves nothing.
* `sync_failed`: the kernel could not write pages and has marked them clean. Only the media is trusted.

A CURRENT that is missing or damaged counts as `sync_failed`, the most careful reading.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec
import xxhash

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, read_all, recreate_file, write_all
from topicsd.disk.fs import FileStat, Fs

CURRENT_FORMAT = 1
CURRENT_BYTES = 512

State = Literal["clean", "running", "sync_failed"]


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """The content of CURRENT."""

    format: int = CURRENT_FORMAT
    state: State
    file: int
    """First ordinal of the WAL file that is, or was last, written."""
    end: int = 0
    """With `clean`: offset in the file where the log ends."""
    boot_id: str
    """Boot id of the machine; empty until the losses of the previous process are logged."""
    device: int = 0
    current_inode: int = 0
    wal_inode: int = 0
    checksum: str = ""

    def is_same_place(self, current: FileStat, wal: FileStat, boot_id: str) -> bool:
        """Return whether these are the inodes that were written, and the machine has not restarted."""
        return (
            self.boot_id == boot_id
            and (self.device, self.current_inode) == (current.device, current.inode)
            and (self.device, self.wal_inode) == (wal.device, wal.inode)
        )


def write_current(fs: Fs, path: str, current: Current) -> None:
    """Replace CURRENT durably, in one step.

    `atomic_replace.replace_file` does not serve: the content names the inode that it is written to.
    """
    temporary = path + TEMPORARY_SUFFIX
    fd = recreate_file(fs, temporary)
    try:
        with_inode = msgspec.structs.replace(current, current_inode=fs.fstat(fd).inode)
        write_all(fs, fd, _encode(with_inode), 0)
        fs.sync_data(fd)
    finally:
        fs.close(fd)
    fs.rename(temporary, path)
    fs.sync_dir(os.path.dirname(path))


def note_sync_failure(fs: Fs, path: str) -> None:
    """Overwrite the state of CURRENT with `sync_failed`, in place and without a sync.

    Reaching the page cache is enough: after a reboot there is no page cache to distrust, and a rename would
    need a sync from a disk that has just failed one.
    """
    current = read_current(fs, path)
    if current is None:
        return
    fd = fs.open_write(path)
    try:
        write_all(fs, fd, _encode(msgspec.structs.replace(current, state="sync_failed")), 0)
    finally:
        fs.close(fd)


def read_current(fs: Fs, path: str) -> Current | None:
    """Return the content of CURRENT, or None when it is missing or damaged."""

    try:
        text = read_all(fs, path, CURRENT_BYTES)
        current = msgspec.json.decode(text, type=Current)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return current if current.format == CURRENT_FORMAT and _encode(current) == text else None


def _encode(current: Current) -> bytes:
    without_checksum = msgspec.structs.replace(current, checksum="")
    checksum = xxhash.xxh3_64_hexdigest(msgspec.json.encode(without_checksum))
    text = msgspec.json.encode(msgspec.structs.replace(without_checksum, checksum=checksum))
    assert len(text) < CURRENT_BYTES
    return text.ljust(CURRENT_BYTES - 1) + b"\n"
