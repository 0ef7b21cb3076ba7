"""The snapshot files of a shard: written so that each is whole or not there, and the newest good one chosen.

The order is the promise. The bytes are on the disk before the file has its name, and the name is on the disk
before `write_snapshot` returns; only then may what the snapshot makes superfluous be dropped. A crash before
the rename leaves a `.tmp` that nobody reads, one behind it a whole snapshot, which may as well be used.

A snapshot that is damaged stays where it is: it costs its room and tells a person what happened. It does not
count among those that are kept, so that it never takes the place of a good one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, create_afresh, exists, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_snapshot_name
from topicsd.engine.checkpoint.snapshot_format import Snapshot, SnapshotDamage, decode_snapshot

KEPT_COUNT = 2

# What a disk answers about bytes that it has lost; any other failure says nothing about the file.
MEDIA_ERRORS = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)

_WRITE_BYTES = 1 << 20


class DamagedSnapshot(NamedTuple):
    number: int
    what: str


def snapshot_numbers(fs: Fs, paths: ShardPaths) -> list[int]:
    """Of the files that are there, good or not, newest first; the next snapshot is numbered above them."""
    found = (parse_snapshot_name(name) for name in names_in(fs, paths.meta))
    return sorted((number for number in found if number is not None), reverse=True)


def write_snapshot(fs: Fs, paths: ShardPaths, number: int, pieces: Iterable[bytes]) -> None:
    """Put a snapshot on the disk under a new number. When it returns, it survives.

    When it raises, nothing of it is there: the caller will go back to what was before, and a snapshot that a
    later start found would name files that have changed since. Only the last sync failing leaves a doubt: a
    power cut may bring the name back. So an error other than ENOSPC is to be taken as a failed disk.
    """
    path = paths.snapshot(number)
    assert not exists(fs, path), "a number is used once"
    try:
        write_whole(fs, path, pieces)
    except OSError:
        with suppress(OSError):
            fs.unlink(path)
        raise


def write_whole(fs: Fs, path: str, pieces: Iterable[bytes]) -> None:
    """`replace_file` for what is too large to be one byte string."""
    temporary = path + TEMPORARY_SUFFIX
    try:
        fd = create_afresh(fs, temporary)
        try:
            offset = 0
            for block in _blocks(pieces):
                write_all(fs, fd, block, offset)
                offset += len(block)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        fs.rename(temporary, path)
    except OSError:
        # On a full disk its room is what others wait for. The first failure is the one to be told.
        with suppress(OSError):
            fs.unlink(temporary)
        raise
    fs.sync_dir(os.path.dirname(path))


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in few calls: a shard may have 100,000 topics of a few hundred bytes."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _WRITE_BYTES:
            yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def read_snapshots(fs: Fs, paths: ShardPaths) -> Iterator[Snapshot | DamagedSnapshot]:
    """Newest first; a file is read when it is asked for. UnknownVersion at one that a newer program wrote."""
    for number in snapshot_numbers(fs, paths):
        try:
            yield read_snapshot(fs, paths, number)
        except SnapshotDamage as damage:
            yield DamagedSnapshot(number, str(damage))
        except FileNotFoundError:
            # A server beside us has dropped it since.
            continue


def read_snapshot(fs: Fs, paths: ShardPaths, number: int) -> Snapshot:
    """SnapshotDamage also for what the disk cannot give back."""
    fd = fs.open_read(paths.snapshot(number))
    try:
        data = fs.pread(fd, fs.fstat(fd).size, 0)
    except OSError as error:
        if error.errno not in MEDIA_ERRORS:
            raise
        raise SnapshotDamage(f"the disk cannot read it: {os.strerror(error.errno)}") from error
    finally:
        fs.close(fd)
    snapshot = decode_snapshot(data)
    if snapshot.head.number != number:
        raise SnapshotDamage(f"it is snapshot {snapshot.head.number} under the name of {number}")
    return snapshot


def choose_snapshot(
    fs: Fs, paths: ShardPaths, why_not: Callable[[Snapshot], str] = lambda snapshot: ""
) -> tuple[Snapshot | None, list[str]]:
    """The newest good snapshot that nothing speaks against, and what is to be said about those in front of
    it. Where something speaks against each, the newest: whoever goes on from it meets that again.

    None with complaints is a shard that had snapshots and has lost them; None without is one that never had
    any. One of a newer program is no damage and not skipped: UnknownVersion, since that program may have
    gone on in ways that the snapshot before it does not know of.
    """
    complaints: list[str] = []
    newest: tuple[Snapshot, list[str]] | None = None
    for found in read_snapshots(fs, paths):
        if not isinstance(found, Snapshot):
            complaints.append(f"{paths.snapshot(found.number)} is damaged and skipped: {found.what}")
            continue
        why = why_not(found)
        if not why:
            return found, complaints
        if newest is None:
            newest = found, complaints.copy()
        complaints.append(f"{paths.snapshot(found.head.number)} is skipped: {why}")
    return (None, complaints) if newest is None else newest


def drop_old_snapshots(
    fs: Fs, paths: ShardPaths, keep: int = KEPT_COUNT, damaged: Collection[int] = ()
) -> list[int]:
    """Unlink all but the newest `keep`, and give the numbers of those kept; `damaged` ones stay, uncounted.

    Call it behind `write_snapshot`, never in front. The oldest goes first and nothing is synced: whichever of
    the unlinks a power cut undoes, what is left are good snapshots, the next call drops them again.
    """
    assert keep >= 1
    good = [number for number in snapshot_numbers(fs, paths) if number not in damaged]
    for number in reversed(good[keep:]):
        fs.unlink(paths.snapshot(number))
    return good[:keep]


def drop_leftovers(fs: Fs, paths: ShardPaths) -> list[str]:
    """Unlink what a run that ended in the middle was writing in meta/; gives the names. Only at a start."""
    leftovers = [name for name in fs.list_dir(paths.meta) if name.endswith(TEMPORARY_SUFFIX)]
    for name in leftovers:
        fs.unlink(os.path.join(paths.meta, name))
    return leftovers
