"""One shard of a data directory on the real disk, ready to be used: all its pieces, put together.

A directory that is not there yet is made. Which of them a request belongs to is the caller's business
(`shared/placement.py`); one shard is all there is to know for whoever embeds the log.

Must not know: other shards, HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from shared.clock import SystemClock
from shared.config import Settings
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import (
    INSTANCE_BYTES,
    Layout,
    LayoutError,
    create_data_dir,
    read_layout,
    restore_empty_dirs,
    shard_paths,
)
from topicsd.engine.shard import Shard
from topicsd.wal.sync_thread import Loop, start_threads
from topicsd.wal.writer import Identity

logger = logging.getLogger("topicsd.engine")

ONE_SHARD = Settings(shards=1)


def open_shard(
    data_dir: str,
    shard: int = 0,
    *,
    settings: Settings = ONE_SHARD,
    loop: Loop | None = None,
    on_failure: Callable[[OSError], None] = lambda error: None,
) -> Shard:
    """Open a shard on this loop, the running one unless told, from which all its calls have to come.

    `settings.data_dir` is not looked at. `on_failure` is called once, when the disk failed: from then on
    writes are refused, and to close the shard and open it again recovers what there is. Raises what `Shard`
    raises, and `LayoutError` when the directory cannot be used.
    """
    fs = RealFs()
    layout = open_layout(fs, data_dir, settings.shards)
    if not 0 <= shard < layout.shards:
        raise LayoutError(f"{data_dir} has shards 0 to {layout.shards - 1}, there is no shard {shard}")
    used_loop = asyncio.get_running_loop() if loop is None else loop
    threads = start_threads(used_loop, shard)
    identity = Identity(layout.instance_bytes, shard)
    paths = shard_paths(data_dir, shard)
    try:
        return Shard(fs, SystemClock(), used_loop, threads, paths, identity, settings, on_failure)
    except BaseException:
        for thread in threads:
            thread.stop()
        raise


def open_layout(fs: Fs, data_dir: str, shard_count: int) -> Layout:
    """The layout of the directory; a new one gets so many shards, and with 0 one for each core."""
    layout = read_layout(fs, data_dir)
    if layout is not None:
        made = restore_empty_dirs(fs, data_dir, layout)
        if made:
            logger.warning(
                "data directory: %d empty directories were missing and are made again, as a copy leaves them "
                "out: %s",
                len(made),
                ", ".join(os.path.relpath(path, data_dir) for path in made),
            )
        return layout
    return create_data_dir(fs, data_dir, new_shard_count(shard_count), os.urandom(INSTANCE_BYTES))


def new_shard_count(shard_count: int) -> int:
    """One for each core when 0 is asked for."""
    return shard_count or len(os.sched_getaffinity(0))
