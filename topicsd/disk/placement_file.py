"""`PLACEMENT.json` of a data directory, read and replaced through a file system.

The codec is `shared/ipc/placement.py`. A running server reads the file in `shared/ipc/shared_placement.py`.
"""

from __future__ import annotations

import os

from shared.ipc.placement import PLACEMENT_NAME, Placement, decode_placement, encode_placement
from topicsd.disk.atomic_replace import read_all, replace_file
from topicsd.disk.fs import Fs

# A hundred thousand exceptions with long names.
PLACEMENT_BYTES_MAX = 32 << 20


def placement_path(data_dir: str) -> str:
    return os.path.join(data_dir, PLACEMENT_NAME)


def read_placement(fs: Fs, data_dir: str, shard_count: int) -> Placement:
    """Return the placement of a directory with so many shards; raise PlacementError."""
    path = placement_path(data_dir)
    try:
        text = read_all(fs, path, PLACEMENT_BYTES_MAX)
    except FileNotFoundError:
        return Placement(shard_count)
    return decode_placement(text, path, shard_count)


def write_placement(fs: Fs, data_dir: str, placement: Placement) -> None:
    """Replace the file durably: it is the old or the new one after a crash."""
    replace_file(fs, placement_path(data_dir), encode_placement(placement))
