"""Dropped files of a shard: kept in trash/ for outside readers for a grace time, then unlinked.

An outside reader may use a manifest that is minutes old. So dropped files move into trash/, under a name with
the time of the drop and the old name::

    trash/0001750000000000-0-0123456789abcdef-1024.seg-0000000000000001.data
          when             number, then the topic's directory and the file's name in it

An open descriptor survives the move. A reader that opens a file too late finds none, and reads the manifest
again.

Files move here only once no kept snapshot and no manifest names them. A crash before the move leaves them in
place, named by nothing. A crash after it leaves them here, where `purge` finds them.

Only files of the shard's own directory move here: a rename works within one file system.
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
"""The most files that one call moves or unlinks, so that its thread is soon free for other work."""


def move_to_trash(fs: Fs, paths: ShardPaths, files: Iterable[str], now_ms: int) -> int:
    """Move files, given by absolute paths, to the trash; return how many were moved.

    Missing files are skipped, so a call that failed halfway can be repeated.

    The names are synced at the end, in trash/ first: a power cut that keeps half of a move keeps the file
    twice rather than not at all. Without a sync it could put the file back where nothing looks for it.
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
    """Return an unused path in the trash.

    A rename would replace an existing file; no other program puts files there.
    """
    above, name = os.path.split(file)
    directory = os.path.basename(above).removesuffix(DELETED_SUFFIX)
    if parse_topic_dir_name(directory) is not None:
        name = f"{directory}.{name}"
    number = 0
    while exists(fs, path := os.path.join(paths.trash, trash_name(now_ms, number, name))):
        number += 1
    return path


def mark_deleted(fs: Fs, paths: ShardPaths, topic_id: int, epoch: int) -> None:
    """Rename a topic's directory to mark the topic as deleted; `empty_deleted` does the rest.

    One synced rename: from here on no start takes the files for those of a topic, even if they are not all
    removed. A topic without a segment has no directory.
    """
    directory = paths.topic_dir(topic_id, epoch)
    with suppress(FileNotFoundError):
        fs.rename(directory, directory + DELETED_SUFFIX)
    fs.sync_dir(paths.topics)


def empty_deleted(fs: Fs, paths: ShardPaths, now_ms: int, files_max: int = FILES_MAX) -> bool:
    """Move files of deleted topics to the trash; return whether more may be left.

    One call moves up to `files_max` files. A directory is removed when it is empty and the moves are synced,
    so that no file is lost with it. The removal is not synced: a directory that a power cut restores is
    empty, and is removed again.
    """
    files_left = files_max
    for name in fs.list_dir(paths.topics):
        incarnation = parse_topic_dir_name(name.removesuffix(DELETED_SUFFIX))
        if incarnation is None or not name.endswith(DELETED_SUFFIX):
            continue
        directory = os.path.join(paths.topics, name)
        files = [os.path.join(directory, file) for file in fs.list_dir(directory)]
        move_to_trash(fs, paths, files[:files_left], now_ms)
        if len(files) > files_left:
            return True
        fs.remove_dir(directory)
        files_left -= len(files)
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
    """Unlink files whose grace time has ended, the oldest first; return the bytes freed.

    One call unlinks up to `files_max` files, and none while a reader holds its lock. Test the locks after the
    drop and after the manifest that does not name the files: a reader that locks later reads a manifest
    without them. With `short_of_space` the grace time is ignored.

    There is no sync: an unlink that a power cut undoes is repeated.
    """
    if readers_held:
        return 0
    freed = 0
    for name in names_in(fs, paths.trash):
        parsed = parse_trash_name(name)
        if parsed is None or not (short_of_space or is_due(parsed[0], now_ms, grace_ms)):
            continue
        path = os.path.join(paths.trash, name)
        # Another thread may purge at the same time.
        with suppress(FileNotFoundError):
            size = fs.stat(path).size
            fs.unlink(path)
            freed += size
        files_max -= 1
        if files_max == 0:
            break
    return freed


def is_due(dropped_ms: int, now_ms: int, grace_ms: int) -> bool:
    """Return whether the grace time has ended.

    It counts as ended for files dropped later than now plus the grace time: the clock stepped back.

    >>> [is_due(1000, now_ms, 100) for now_ms in (899, 900, 1000, 1099, 1100)]
    [True, False, False, False, True]
    """
    return not -grace_ms <= now_ms - dropped_ms < grace_ms


def trash_bytes(fs: Fs, paths: ShardPaths) -> int:
    """Return the bytes that a purge of everything would free."""
    return sum(
        fs.stat(os.path.join(paths.trash, name)).size
        for name in names_in(fs, paths.trash)
        if parse_trash_name(name) is not None
    )
