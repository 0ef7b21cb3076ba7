"""The rescue copy: a new WAL file with the media's bytes of a file whose sync failed.

After a failed sync the kernel marks pages clean that it could not write, so neither the page cache nor a
later sync of that file can be trusted. The bytes that the media returned, and recovery found intact, are
written to a new file under the old name; the old file is kept in quarantine.

The copy has its own epoch and the same batches at the same offsets: positions and chains stay valid.
"""

from __future__ import annotations

import os

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, exists, recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.log.batch_end import BATCH_END_BYTES, encode_batch_end
from topicsd.log.file_header import EPOCH_BYTES, encode_file_header
from topicsd.log.reader import WalBatchReader
from topicsd.log.walk import WalkedFile


def make_rescue_copy(fs: Fs, paths: ShardPaths, walked: WalkedFile) -> None:
    """Replace the file by its copy in one step; after a crash the next start does it again."""
    path = os.path.join(paths.wal, walked.wal_file.name)
    temporary = path + TEMPORARY_SUFFIX
    fd = recreate_file(fs, temporary)
    try:
        _copy(fs, walked, fd)
        fs.sync_data(fd)
    finally:
        fs.close(fd)
    _keep_original(fs, paths, walked, path)
    fs.rename(temporary, path)
    fs.sync_dir(paths.wal)


def _copy(fs: Fs, walked: WalkedFile, fd: int) -> None:
    header = walked.wal_file.header
    assert header is not None
    epoch = os.urandom(EPOCH_BYTES)
    # Not preallocated like the original: the copy is never appended to.
    shortened = header._replace(epoch=epoch, file_bytes=walked.end)
    write_all(fs, fd, encode_file_header(shortened), 0)
    reader = WalBatchReader(fs, walked.wal_file.fd, header)
    while reader.offset < walked.end:
        batch = reader.next()
        assert batch is not None, "a batch that was just read is missing"
        frames = batch.buffer[batch.start : batch.end]
        closing = batch.closing._replace(epoch=epoch, synced=batch.offset)
        write_all(fs, fd, frames + encode_batch_end(closing, ts=header.ts), batch.offset)
        assert reader.offset == batch.offset + len(frames) + BATCH_END_BYTES


def _keep_original(fs: Fs, paths: ShardPaths, walked: WalkedFile, path: str) -> None:
    assert walked.wal_file.header is not None
    target = paths.quarantine_file(
        f"{walked.wal_file.name}.{walked.wal_file.header.epoch.hex()[:8]}.sync-failed"
    )
    if not exists(fs, target):
        fs.link(path, target)
    fs.sync_dir(paths.quarantine)
