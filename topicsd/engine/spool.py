"""The spool: bodies of single records on their way in, in files without a name.

A record is framed when all of it is there, since a frame begins with the lengths of its parts. Until then a
small body is in memory, and a larger one is written to a file, so that many slow uploads take no memory. The
file is mapped to be framed, and the log gets its bytes from there: they are never copied within this process.

A file has a name for an instant only (as the reserve, `checkpoint/reserve.py`), so that it ends with its
connection, and with the process.
"""

from __future__ import annotations

import errno
import io

from shared.contract.errors import STORAGE_FAILED, STORAGE_FULL, Refusal, reason_without_path
from shared.http.body import too_large
from shared.runtime.body_memory import SharedBody
from shared.settings.settings import Settings
from topicsd.disk.atomic_replace import recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths


class SpoolFile:
    """A file of the spool that is being written."""

    def __init__(self, fs: Fs, path: str) -> None:
        """Create the file; raises OSError."""
        self._fs = fs
        self._fd = -1
        self._fd = recreate_file(fs, path)
        self._size = 0
        fs.unlink(path)

    def __del__(self) -> None:
        if self._fd >= 0:
            self._fs.close(self._fd)

    def write(self, data: bytes) -> None:
        write_all(self._fs, self._fd, data, self._size)
        self._size += len(data)

    def finish(self) -> SharedBody:
        fd, self._fd = self._fd, -1
        return SharedBody(fd, self._size)


class SpoolSink:
    """Gather the body of one record: in memory while it is small, then in a file."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._size = 0
        self._small = io.BytesIO()
        self._file: SpoolFile | None = None

    def write(self, data: bytes) -> Refusal | None:
        self._size += len(data)
        if self._size > self._spool.record_bytes_max:
            return too_large(self._spool.record_bytes_max)
        try:
            if self._file is not None:
                self._file.write(data)
            elif self._size <= self._spool.memory_bytes_max:
                self._small.write(data)
            else:
                self._file = self._spool.create()
                self._file.write(self._small.getvalue() + data)
                self._small = io.BytesIO()
        except OSError as error:
            self._file = None
            return _refuse_error(error)
        return None

    def finish(self) -> bytes | SharedBody | Refusal:
        return self._small.getvalue() if self._file is None else self._file.finish()


class Spool:
    """The spool of one shard."""

    def __init__(self, fs: Fs, paths: ShardPaths, settings: Settings) -> None:
        self._fs = fs
        self._path = paths.spool
        self.memory_bytes_max = settings.spool_bytes
        self.record_bytes_max = min(settings.max_record_bytes, settings.max_body_bytes)

    def sink(self) -> SpoolSink:
        return SpoolSink(self)

    def create(self) -> SpoolFile:
        return SpoolFile(self._fs, self._path)


def _refuse_error(error: OSError) -> Refusal:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refusal(STORAGE_FULL, "disk full: the record cannot be received")
    return Refusal(STORAGE_FAILED, f"the record cannot be received: {reason_without_path(error)}")
