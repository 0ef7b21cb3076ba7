"""The beginning of an empty log, for a shard whose records are all in segments.

The log file is durable before the CURRENT that names it, and both before the function returns: the snapshot
that begins there may be written next.
"""

from __future__ import annotations

import os

from shared.runtime.clock import Clock
from topicsd.disk.atomic_replace import replace_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.log.current_file import Current, write_current
from topicsd.log.file_header import EPOCH_BYTES, FILE_HEADER_BYTES, FileHeader, encode_file_header
from topicsd.log.files import LogPlace
from topicsd.log.writer import Identity

_CHAIN_BYTES = 8


def begin_empty_log(fs: Fs, clock: Clock, paths: ShardPaths, identity: Identity, ordinal: int) -> LogPlace:
    """Write an empty log file that no other file chains to, and a CURRENT that names it."""
    chain = int.from_bytes(os.urandom(_CHAIN_BYTES), "little")
    epoch = os.urandom(EPOCH_BYTES)
    header = FileHeader(
        identity.shard, identity.instance, epoch, ordinal, chain, FILE_HEADER_BYTES, clock.now_ms()
    )
    path = paths.wal_file(ordinal)
    replace_file(fs, path, encode_file_header(header))
    stat = fs.stat(path)
    current = Current(
        state="clean",
        file=ordinal,
        end=FILE_HEADER_BYTES,
        boot_id=fs.boot_id(),
        device=stat.device,
        wal_inode=stat.inode,
    )
    write_current(fs, paths.current, current)
    return LogPlace(ordinal, FILE_HEADER_BYTES, ordinal, chain)
