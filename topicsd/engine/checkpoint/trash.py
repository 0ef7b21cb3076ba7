"""Files that the shard has dropped: kept for readers for a grace time, then unlinked.

A reader from outside goes by a manifest that may be minutes old. So what the server drops moves into trash/,
under a name that says when it was dropped and what it was::

    trash/0001750000000000-0-0123456789abcdef-1024.seg-0000000000000001.data
          when             number, then the topic's directory and the file's name in it

An open descriptor survives the move, and who comes too late finds no file and reads the manifest again.

The order around it: no snapshot that is kept names the files any more, and the manifest does not either; then
they move here. A crash in front of the move leaves them where they were, named by nothing. A crash behind it
leaves them here, where `purge` finds them.

Only files of the shard's own directory: a rename does not leave its file system.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from topicsd.disk.atomic_replace import exists
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_topic_dir_name, parse_trash_name, trash_name

DELETED_SUFFIX = ".deleted"
FILES_MAX = 256
"""How many files one call moves or unlinks, so that the thread it runs on is soon free for others."""


def move_to_trash(fs: Fs, paths: ShardPaths, files: Iterable[str], now_ms: int) -> int:
    """Move files by their absolute paths; gives how many. One that is not there any more is passed over, so
    a call that failed half way is simply made again.

    The names are synced at the end, in trash/ first: a power cut that keeps one half of a move keeps a file
    twice and not at all. Without a sync it could put the file back where nobody looks for it.
    """
    moved = 0
    directories: dict[str, None] = {}
    for file in files:
        assert file.startswith(paths.root + os.sep)
        directories[os.path.dirname(file)] = None
        with suppress(FileNotFoundError):
            fs.rename(file, _free_path(fs, paths, file, now_ms))
            moved += 1
    if directories:
        fs.sync_dir(paths.trash)
    for directory in directories:
        with suppress(FileNotFoundError):
            fs.sync_dir(directory)
    return moved


def _free_path(fs: Fs, paths: ShardPaths, file: str, now_ms: int) -> str:
    """A rename replaces what has the name, so the name is asked for first; nobody else puts files there."""
    above, name = os.path.split(file)
    directory = os.path.basename(above).removesuffix(DELETED_SUFFIX)
    if parse_topic_dir_name(directory) is not None:
        name = f"{directory}.{name}"
    number = 0
    while exists(fs, path := os.path.join(paths.trash, trash_name(now_ms, number, name))):
        number += 1
    return path


def mark_deleted(fs: Fs, paths: ShardPaths, topic_id: int, epoch: int) -> None:
    """Say by its name that a topic's directory is that of a deleted one; `empty_deleted` does the rest.

    One rename, synced: from here on no start takes the files for those of a topic, however far the emptying
    comes. A topic without a segment has no directory.
    """
    directory = paths.topic_dir(topic_id, epoch)
    with suppress(FileNotFoundError):
        fs.rename(directory, directory + DELETED_SUFFIX)
    fs.sync_dir(paths.topics)


def empty_deleted(fs: Fs, paths: ShardPaths, now_ms: int, files_max: int = FILES_MAX) -> bool:
    """Move up to `files_max` files of deleted topics to the trash; True when there may be more to do.

    A directory goes when it is empty and its moves are synced, so that no file is lost with it. That it is
    gone is not synced: one that a power cut brings back is empty, and goes again.
    """
    room = files_max
    for name in fs.list_dir(paths.topics):
        incarnation = parse_topic_dir_name(name.removesuffix(DELETED_SUFFIX))
        if incarnation is None or not name.endswith(DELETED_SUFFIX):
            continue
        directory = os.path.join(paths.topics, name)
        files = [os.path.join(directory, file) for file in fs.list_dir(directory)]
        move_to_trash(fs, paths, files[:room], now_ms)
        if len(files) > room:
            return True
        fs.remove_dir(directory)
        room -= len(files)
    return False


def purge(
    fs: Fs,
    paths: ShardPaths,
    now_ms: int,
    grace_ms: int,
    readers_held: bool,
    short_of_space: bool,
    files_max: int = FILES_MAX,
) -> int:
    """Unlink up to `files_max` files whose time has come, the oldest first; gives the bytes that were freed.

    Nothing while a reader holds its lock. Ask for that behind the drop and behind the manifest that does not
    name the files: a reader that locks later reads a manifest without them.

    No sync: an unlink that a power cut undoes is done again.
    """
    if readers_held:
        return 0
    freed = 0
    for name in names_in(fs, paths.trash):
        parsed = parse_trash_name(name)
        if parsed is None or not (short_of_space or is_due(parsed[0], now_ms, grace_ms)):
            continue
        path = os.path.join(paths.trash, name)
        # Another thread may be at it as well.
        with suppress(FileNotFoundError):
            size = fs.stat(path).size
            fs.unlink(path)
            freed += size
        files_max -= 1
        if files_max == 0:
            break
    return freed


def is_due(dropped_ms: int, now_ms: int, grace_ms: int) -> bool:
    """A clock that stepped back by more than the grace time says nothing about what was dropped before.

    >>> [is_due(1000, now_ms, 100) for now_ms in (899, 900, 1000, 1099, 1100)]
    [True, False, False, False, True]
    """
    return not -grace_ms <= now_ms - dropped_ms < grace_ms


def trash_bytes(fs: Fs, paths: ShardPaths) -> int:
    """What a purge of everything would free."""
    return sum(
        fs.stat(os.path.join(paths.trash, name)).size
        for name in names_in(fs, paths.trash)
        if parse_trash_name(name) is not None
    )
