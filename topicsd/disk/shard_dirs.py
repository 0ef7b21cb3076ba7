"""The directories of shards that are added to a data directory or removed from it, while a server runs.

LAYOUT.json is the journal. Its field `directories` announces that shards/ may have directories beyond those
of the layout, which hold nothing of value. So whatever is left of an interrupted change is known, and
`settle_directories` removes it at the next start, before any shard is opened.

D1  Adding: announce, make and sync the directories, then count them as shards. The placement has a file with
    the number of its rule before that: without the file the rule follows the layout.
D2  Removing: the shards hold no topic, and their workers have ended. Stop counting them as shards and
    announce their directories, in one replacement; then remove the directories; then end the announcement.
D3  Files in quarantine/ are never deleted: they are moved to the quarantine of shard 0 before a directory is
    removed.
"""

from __future__ import annotations

import os

import msgspec

from shared.ipc.placement import PLACEMENT_NAME, Placement
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import (
    LAYOUT_NAME,
    Layout,
    LayoutError,
    make_shard_dirs,
    names_in,
    read_layout,
    shard_numbers,
    shard_paths,
    with_checksum,
    write_layout,
)
from topicsd.disk.placement_file import write_placement


class ShardDirectories:
    """The shard directories of a server's data directory. All methods block for the disk."""

    def __init__(self, fs: Fs, data_dir: str) -> None:
        self._fs = fs
        self._data_dir = data_dir

    def write_placement(self, placement: Placement) -> None:
        write_placement(self._fs, self._data_dir, placement)

    def add(self, shard_count: int) -> None:
        """Make the directories of new shards, until there are `shard_count` (D1)."""
        fs, data_dir = self._fs, self._data_dir
        layout = self._layout()
        if layout.shards >= shard_count:
            return
        assert exists(fs, os.path.join(data_dir, PLACEMENT_NAME))
        write_layout(fs, data_dir, _announcing(layout, layout.shards, shard_count))
        for shard in range(layout.shards, shard_count):
            make_shard_dirs(fs, shard_paths(data_dir, shard))
        fs.sync_dir(os.path.join(data_dir, "shards"))
        write_layout(fs, data_dir, _announcing(layout, shard_count))

    def remove(self, shard_count: int) -> None:
        """Remove the directories of all but `shard_count` shards, which hold no topic (D2)."""
        layout = self._layout()
        if layout.shards > shard_count:
            write_layout(self._fs, self._data_dir, _announcing(layout, shard_count, layout.shards))
        settle_directories(self._fs, self._data_dir, self._layout())

    def _layout(self) -> Layout:
        layout = read_layout(self._fs, self._data_dir)
        if layout is None:
            raise LayoutError(f"{os.path.join(self._data_dir, LAYOUT_NAME)}: missing")
        return layout


def settle_directories(fs: Fs, data_dir: str, layout: Layout) -> Layout:
    """Remove the directories that the layout announces to be of no value; return the layout without them."""
    if not layout.directories:
        return layout
    for shard in shard_numbers(fs, data_dir):
        if layout.shards <= shard < layout.directories:
            _keep_quarantine(fs, data_dir, shard)
            remove_tree(fs, shard_paths(data_dir, shard).root)
    fs.sync_dir(os.path.join(data_dir, "shards"))
    settled = _announcing(layout, layout.shards)
    write_layout(fs, data_dir, settled)
    return settled


def remove_tree(fs: Fs, path: str) -> None:
    """Remove a file, or a directory with everything in it; syncs nothing, since it can be repeated."""
    try:
        names = fs.list_dir(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        fs.unlink(path)
        return
    for name in names:
        remove_tree(fs, os.path.join(path, name))
    fs.remove_dir(path)


def _keep_quarantine(fs: Fs, data_dir: str, shard: int) -> None:
    source, target = shard_paths(data_dir, shard).quarantine, shard_paths(data_dir, 0).quarantine
    names = names_in(fs, source)
    for name in names:
        fs.rename(os.path.join(source, name), os.path.join(target, f"shard-{shard:02d}-{name}"))
    if names:
        fs.sync_dir(target)


def _announcing(layout: Layout, shards: int, directories: int = 0) -> Layout:
    return with_checksum(
        msgspec.structs.replace(layout, shards=shards, directories=directories or msgspec.UNSET)
    )
