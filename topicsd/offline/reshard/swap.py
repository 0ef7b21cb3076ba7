"""The commit of a reshard, and what follows an interruption: there is never a second truth.

The new shards are built as a data directory of their own, in `reshard.new`. One rename to `reshard.ready` is
the commit: before it the old shards are the truth, after it the new ones. No other file records the phase.

C1  Everything below `reshard.new` is synced, and was loaded once as a start loads it.
C2  `reshard.new` is renamed to `reshard.ready`, and the data directory is synced. This is the commit.
C3  `shards` is renamed to `reshard.ready/old`. Both directories are synced before the next rename, so that a
    power cut cannot keep only the second.
C4  `reshard.ready/shards` is renamed to `shards`, and both directories are synced.
C5  `reshard.ready/PLACEMENT.json`, if there is one, replaces PLACEMENT.json, and both directories are synced.
C6  `reshard.ready/LAYOUT.json` replaces LAYOUT.json, and both directories are synced. Until here a
    `LAYOUT.json` in `reshard.ready` makes every other program refuse the directory, so none ever combines the
    new placement with the old layout.
C7  What the old shards had in the cold directory and the new ones have elsewhere is removed, then the old
    shards. The journal goes last, since it names the cold directory.

`settle` runs at every start of a server and of a reshard, with the lock of the data directory held. It
finishes from C3 on what was committed, and removes what was not: first the links in the cold directory, then
`reshard.new`, with its journal last. Each step looks at the disk and can be repeated.

Hard links of the old files exist in `reshard.new` at most until the next start, which removes them before a
shard is opened. So no file is ever written through two names.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from shared.ipc.placement import PLACEMENT_NAME, Placement
from topicsd.disk.atomic_replace import exists, read_all, replace_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import (
    LAYOUT_NAME,
    Layout,
    committed_path,
    names_in,
    parse_topic_dir_name,
    read_layout,
    shard_numbers,
    shard_paths,
    shards_path,
    staged_path,
)
from topicsd.disk.placement_file import read_placement
from topicsd.disk.shard_dirs import remove_tree

JOURNAL_NAME: Final = "RESHARD.json"
JOURNAL_BYTES_MAX: Final = 1 << 16
OLD_NAME: Final = "old"


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a reshard needs to know."""

    format: int = 1
    shards_before: int
    shards: int
    cold_dir: str


class JournalDamaged(Exception):
    """A journal that cannot be read."""


def write_journal(fs: Fs, directory: str, journal: Journal) -> None:
    replace_file(fs, os.path.join(directory, JOURNAL_NAME), msgspec.json.encode(journal) + b"\n")


def read_journal(fs: Fs, directory: str) -> Journal | None:
    """Return the journal, or None when the directory has none: nothing is in the cold directory then."""
    path = os.path.join(directory, JOURNAL_NAME)
    try:
        return msgspec.json.decode(read_all(fs, path, JOURNAL_BYTES_MAX), type=Journal)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JournalDamaged(f"{path}: damaged: {error}; restore the directory from a backup") from None


def commit(fs: Fs, data_dir: str) -> None:
    """Make the staged shards the truth (C2)."""
    fs.rename(staged_path(data_dir), committed_path(data_dir))
    fs.sync_dir(data_dir)


def settle(fs: Fs, data_dir: str) -> str:
    """Finish or undo an interrupted reshard; return what was done as a sentence, or "".

    The caller holds the lock of the data directory. Raise JournalDamaged, or LayoutError or PlacementError
    for a directory that is damaged in another way.
    """
    if exists(fs, committed_path(data_dir)):
        return _finish(fs, data_dir)
    if exists(fs, staged_path(data_dir)):
        return _undo(fs, data_dir)
    return ""


def _finish(fs: Fs, data_dir: str) -> str:
    ready = committed_path(data_dir)
    journal = read_journal(fs, ready)
    if exists(fs, os.path.join(ready, LAYOUT_NAME)):
        _exchange(fs, data_dir, ready)
    if journal is None:
        return _remove(fs, data_dir, ready, "an interrupted reshard was finished")
    done = f"an interrupted reshard from {journal.shards_before} to {journal.shards} shards was finished"
    if journal.cold_dir:
        if not exists(fs, journal.cold_dir):
            return (
                f"{done}, except in {journal.cold_dir}, which is missing: the next start removes files there"
            )
        placement = read_placement(fs, data_dir, journal.shards)
        _clean_cold(fs, journal.cold_dir, journal.shards, placement, need_twin=False)
    return _remove(fs, data_dir, ready, done)


def _exchange(fs: Fs, data_dir: str, ready: str) -> None:
    """Put the new shards and their layout into place (C3 to C6)."""
    new_shards = os.path.join(ready, "shards")
    if exists(fs, new_shards):
        if exists(fs, shards_path(data_dir)):
            _move(fs, shards_path(data_dir), os.path.join(ready, OLD_NAME))
        _move(fs, new_shards, shards_path(data_dir))
    for name in (PLACEMENT_NAME, LAYOUT_NAME):
        if exists(fs, os.path.join(ready, name)):
            _move(fs, os.path.join(ready, name), os.path.join(data_dir, name))


def _move(fs: Fs, source: str, target: str) -> None:
    # The target first: a file system that tears the rename has the name twice rather than not at all.
    fs.rename(source, target)
    fs.sync_dir(os.path.dirname(target))
    fs.sync_dir(os.path.dirname(source))


def _undo(fs: Fs, data_dir: str) -> str:
    staged = staged_path(data_dir)
    journal = read_journal(fs, staged)
    layout = read_layout(fs, data_dir)
    if layout is None:
        return ""  # LAYOUT.json is lost, and the next step reports it.
    done = f"an interrupted reshard was undone; the directory has {_count(layout)}, as before"
    if journal is not None and journal.cold_dir:
        if not exists(fs, journal.cold_dir):
            return (
                f"{done}, except in {journal.cold_dir}, which is missing: the next start removes files there"
            )
        placement = read_placement(fs, data_dir, layout.shards)
        _clean_cold(fs, journal.cold_dir, layout.shards, placement, need_twin=True)
    return _remove(fs, data_dir, staged, done)


def _count(layout: Layout) -> str:
    return "1 shard" if layout.shards == 1 else f"{layout.shards} shards"


def _remove(fs: Fs, data_dir: str, directory: str, done: str) -> str:
    """Remove a directory with its journal last; return `done`."""
    for name in names_in(fs, directory):
        if name != JOURNAL_NAME:
            remove_tree(fs, os.path.join(directory, name))
    fs.sync_dir(directory)
    remove_tree(fs, directory)
    fs.sync_dir(data_dir)
    return done


def _clean_cold(fs: Fs, cold_dir: str, shards: int, placement: Placement, *, need_twin: bool) -> None:
    """Remove the topics in the cold directory that are in a shard other than their own.

    With `need_twin` a file is removed only if the own shard of its topic has one of that name: before the
    commit, a file that exists once is never removed.
    """
    for number in shard_numbers(fs, cold_dir):
        paths = shard_paths(cold_dir, number)
        for directory in names_in(fs, paths.topics):
            incarnation = parse_topic_dir_name(directory)
            if incarnation is None or (owner := placement.shard_of(incarnation[0])) == number:
                continue
            path = os.path.join(paths.topics, directory)
            own_path = os.path.join(shard_paths(cold_dir, owner).topics, directory)
            for name in fs.list_dir(path):
                if not need_twin or exists(fs, os.path.join(own_path, name)):
                    fs.unlink(os.path.join(path, name))
            fs.sync_dir(path)
            _remove_if_empty(fs, path)
        if exists(fs, paths.topics):
            fs.sync_dir(paths.topics)
        if number >= shards:
            _remove_if_empty(fs, paths.topics)
            _remove_if_empty(fs, paths.root)
    if exists(fs, shards_path(cold_dir)):
        fs.sync_dir(shards_path(cold_dir))


def _remove_if_empty(fs: Fs, path: str) -> None:
    if exists(fs, path) and not fs.list_dir(path):
        fs.remove_dir(path)
