"""The files of a shard, also those that it has dropped since: they stay in trash/ for a while.

A job goes by a plan that is older than its last task. So a file that is not in its place is looked for
where the server puts it: in the directory of a topic that is being deleted, and in trash/ by its name there.
What is in none of them was dropped longer ago than the grace time, or from the cold directory, which keeps
nothing.

Must not know: what the files are.
"""

from __future__ import annotations

import os

from topicsd.checkpoint.trash import DELETED_SUFFIX
from topicsd.commands.loaded_shard import LookingStore
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, parse_trash_name


class KeptStore(LookingStore):
    """Segments by their keys, in the shard's directory or its trash."""

    def __init__(self, fs: Fs, paths: ShardPaths) -> None:
        super().__init__(fs, paths.root)
        self._fs = fs
        self._paths = paths

    def path_of(self, key: str) -> str:
        path = super().path_of(key)
        directory, name = os.path.split(path)
        for place in (path, os.path.join(directory + DELETED_SUFFIX, name)):
            if exists(self._fs, place):
                return place
        return kept_path(self._fs, self._paths, ".".join(key.split("/")[1:])) or path

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        try:
            return super().read_range(key, offset, size)
        except FileNotFoundError:
            # It may have gone between the look and the opening, and then it is in its next place.
            return super().read_range(key, offset, size)


def kept_path(fs: Fs, paths: ShardPaths, name: str) -> str | None:
    """Where trash/ has the file that was dropped last under this name."""
    try:
        names = fs.list_dir(paths.trash)
    except FileNotFoundError:
        return None
    for found in reversed(names):
        parsed = parse_trash_name(found)
        if parsed is not None and parsed[2] == name:
            return os.path.join(paths.trash, found)
    return None
