"""The data directory named on a command line: its layout and the selected shards."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import NamedTuple

from shared.ipc.placement import Placement, PlacementDamaged, PlacementError
from shared.settings.store_url import folder_url, refuse_store_url
from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import (
    COMMITTED_NAME,
    LAYOUT_NAME,
    STAGED_NAME,
    Layout,
    LayoutDamaged,
    LayoutError,
    ShardPaths,
    read_layout,
    rebuild_advice,
    shard_numbers,
    shard_paths,
)
from topicsd.disk.placement_file import read_placement
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.log.writer import Identity
from topicsd.offline.command_error import EXIT_PROBLEM, CommandError


class DataDir(NamedTuple):
    """A data directory and the shards that a command reads."""

    fs: Fs
    path: str
    layout: Layout
    placement: Placement
    shards: list[int]
    """The selected shards, in the order in which they are read."""
    store_url: str = ""
    """The object store of the segments; empty: the one that the manifest of each shard names."""
    is_held: bool = False
    """This process holds the locks of the shards that it reads, and writes to none of them while it reads."""
    checks_objects: bool = False
    """Whether a check also reads objects of a remote store whose segments are local, which is billed."""

    def paths(self, shard: int) -> ShardPaths:
        return shard_paths(self.path, shard)

    def identity(self, shard: int) -> Identity:
        return Identity(self.layout.instance_bytes, shard)


def add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help=f"the data directory, which contains {LAYOUT_NAME}")
    parser.add_argument("--shard", type=int, metavar="N", help="only shard N, counted from 0")
    add_store(parser)


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cold-dir",
        metavar="DIR",
        default="",
        help="the folder of the object store: short for --store-url file:///DIR",
    )
    parser.add_argument(
        "--store-url",
        metavar="URL",
        default="",
        help="the object store of old segments (default: the one that the manifest of each shard names)",
    )


def open_data_dir(args: argparse.Namespace, on_read: Callable[[int], None] | None = None) -> DataDir:
    """Return the data directory that the arguments name; CommandError when it is unusable."""
    fs = ReadOnlyFs(RealFs()) if on_read is None else ReadOnlyFs(RealFs(), on_read)
    try:
        layout = layout_of(fs, args.directory)
        return data_dir_of(args, fs, layout, read_placement(fs, args.directory, layout.shards))
    except (LayoutError, PlacementError) as error:
        advice = rebuild_advice(args.directory) if isinstance(error, PlacementDamaged) else ""
        raise CommandError(f"{error}{advice}", EXIT_PROBLEM) from None


def layout_of(fs: Fs, path: str) -> Layout:
    """Return the layout of a data directory.

    Raises LayoutError when LAYOUT.json is missing or damaged, CommandError when `path` is no data directory.
    """
    layout = read_layout(fs, path)
    if layout is not None:
        return layout
    if not shard_numbers(fs, path):
        raise CommandError(_not_a_data_dir(fs, path))
    raise LayoutDamaged(
        f"{os.path.join(path, LAYOUT_NAME)}: missing, but {path} has shards{rebuild_advice(path)}"
    )


def data_dir_of(args: argparse.Namespace, fs: Fs, layout: Layout, placement: Placement) -> DataDir:
    path: str = args.directory
    shard: int | None = args.shard
    store_url = store_url_of_args(args)
    if shard is None:
        return DataDir(fs, path, layout, placement, list(range(layout.shards)), store_url)
    if not 0 <= shard < layout.shards:
        raise CommandError(f"--shard: must be 0 to {layout.shards - 1} for {path}, got {shard}")
    return DataDir(fs, path, layout, placement, [shard], store_url)


def store_url_of_args(args: argparse.Namespace) -> str:
    """Return the URL that `add_store` has taken, or an empty text."""
    if args.cold_dir and args.store_url:
        raise CommandError("--cold-dir: must not be given with --store-url: both name the object store")
    problem = refuse_store_url(args.store_url) if args.store_url else None
    if problem is not None:
        raise CommandError(f"--store-url: {problem}")
    return args.store_url or folder_url(args.cold_dir)


def owner_first(data_dir: DataDir, topic: str) -> list[int]:
    """Return the shards to search for a topic: its owner first, then the others."""
    owner = data_dir.placement.owner_of(topic)
    return sorted(data_dir.shards, key=lambda shard: (shard != owner, shard))


def stray_shards(data_dir: DataDir) -> list[str]:
    """Return the directories in shards/ that the layout does not name."""
    names = {os.path.basename(data_dir.paths(shard).root) for shard in range(data_dir.layout.shards)}
    return [name for name in data_dir.fs.list_dir(os.path.join(data_dir.path, "shards")) if name not in names]


def reshard_leftovers(data_dir: DataDir) -> list[str]:
    """Return a note for each directory that an interrupted reshard left."""
    names = [name for name in (STAGED_NAME, COMMITTED_NAME) if name in data_dir.fs.list_dir(data_dir.path)]
    return [
        f"{name}: left by an interrupted reshard; the next start of a server removes it" for name in names
    ]


def _not_a_data_dir(fs: Fs, path: str) -> str:
    """Return the message that says why `path` is no data directory."""
    if not exists(fs, path):
        return f"{path} does not exist"
    try:
        names = fs.list_dir(path)
    except NotADirectoryError:
        return f"{path} is a file, not a data directory"
    if "wal" in names:
        return (
            f"{path} is a shard; name the data directory that contains it, and select the shard with --shard"
        )
    return f"{path} is not a data directory: it has no {LAYOUT_NAME}"
