"""The snapshot files of a shard: each is whole or absent, and a start chooses the newest good one.

The order of the steps is the guarantee. The bytes are on the disk before the file has its name, and the name
is on the disk before `write_snapshot` returns; only then may files that the snapshot replaces be dropped. A
crash before the rename leaves a `.tmp` that is never read; a crash after it leaves a whole snapshot, which is
valid.

A damaged snapshot is kept: it costs its space and shows what happened. It does not count among the kept ones,
so that it never replaces a good one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from topicsd.disk.atomic_replace import TEMPORARY_SUFFIX, exists, recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_snapshot_name
from topicsd.engine.checkpoint.snapshot_format import Snapshot, SnapshotDamage, decode_snapshot

KEPT_COUNT = 2

# Errors that mean lost bytes. Any other error says nothing about the file.
MEDIA_ERRORS = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)

_WRITE_BYTES = 1 << 20


class DamagedSnapshot(NamedTuple):
    """The number of a damaged snapshot, and the damage."""

    number: int
    what: str


def snapshot_numbers(fs: Fs, paths: ShardPaths) -> list[int]:
    """Return the numbers of all snapshot files, good or damaged, newest first.

    The next snapshot is numbered above them.
    """
    numbers = (parse_snapshot_name(name) for name in names_in(fs, paths.meta))
    return sorted((number for number in numbers if number is not None), reverse=True)


def write_snapshot(fs: Fs, paths: ShardPaths, number: int, parts: Iterable[bytes]) -> None:
    """Write a snapshot durably under a new number.

    When it raises, no snapshot is left: the caller restores the previous state, and a later start must not
    find a snapshot that names files changed since. Only a failure of the last sync is in doubt: a power cut
    may restore the name. So treat an error other than ENOSPC as a failed disk.
    """
    path = paths.snapshot(number)
    assert not exists(fs, path), "each snapshot has a new number"
    try:
        write_whole(fs, path, parts)
    except OSError:
        with suppress(OSError):
            fs.unlink(path)
        raise


def write_whole(fs: Fs, path: str, parts: Iterable[bytes]) -> None:
    """Replace a file like `atomic_replace.replace_file`, for content too large for one byte string."""
    temporary = path + TEMPORARY_SUFFIX
    try:
        fd = recreate_file(fs, temporary)
        try:
            offset = 0
            for block in _blocks(parts):
                write_all(fs, fd, block, offset)
                offset += len(block)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        fs.rename(temporary, path)
    except OSError:
        # On a full disk other writes need this space. Report the first failure.
        with suppress(OSError):
            fs.unlink(temporary)
        raise
    fs.sync_dir(os.path.dirname(path))


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join the parts into large blocks: a shard may have 100,000 topics of a few hundred bytes."""
    block: list[bytes] = []
    size = 0
    for part in parts:
        block.append(part)
        size += len(part)
        if size >= _WRITE_BYTES:
            yield block[0] if len(block) == 1 else b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def read_snapshots(fs: Fs, paths: ShardPaths) -> Iterator[Snapshot | DamagedSnapshot]:
    """Yield the snapshots, newest first, reading each on demand.

    UnknownVersion at one that a newer program wrote.
    """
    for number in snapshot_numbers(fs, paths):
        try:
            yield read_snapshot(fs, paths, number)
        except SnapshotDamage as damage:
            yield DamagedSnapshot(number, str(damage))
        except FileNotFoundError:
            # A running server has dropped it since.
            continue


def read_snapshot(fs: Fs, paths: ShardPaths, number: int) -> Snapshot:
    """Return a snapshot; raise SnapshotDamage for damaged or unreadable bytes."""
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
        raise SnapshotDamage(f"it holds snapshot {snapshot.head.number} under the name of snapshot {number}")
    return snapshot


def choose_snapshot(
    fs: Fs, paths: ShardPaths, objection_to: Callable[[Snapshot], str] = lambda snapshot: ""
) -> tuple[Snapshot | None, list[str]]:
    """Return the newest good snapshot without an objection, and complaints about newer ones.

    `objection_to` returns an objection or "". If it objects to every snapshot, the newest good one is
    returned: loading it meets the same problem and reports it.

    None with complaints means that the shard has lost its snapshots; None without any, that it never had one.
    A snapshot of a newer program is not damage and not skipped: UnknownVersion is raised, since that program
    may have made changes that the older snapshot does not know.
    """
    complaints: list[str] = []
    newest: tuple[Snapshot, list[str]] | None = None
    for snapshot in read_snapshots(fs, paths):
        if not isinstance(snapshot, Snapshot):
            complaints.append(f"{paths.snapshot(snapshot.number)} is damaged and skipped: {snapshot.what}")
            continue
        objection = objection_to(snapshot)
        if not objection:
            return snapshot, complaints
        if newest is None:
            newest = snapshot, complaints.copy()
        complaints.append(f"{paths.snapshot(snapshot.head.number)} is skipped: {objection}")
    return (None, complaints) if newest is None else newest


def drop_old_snapshots(
    fs: Fs, paths: ShardPaths, keep: int = KEPT_COUNT, damaged: Collection[int] = ()
) -> list[int]:
    """Unlink all but the newest `keep` good snapshots; return the numbers of those kept.

    `damaged` ones stay and do not count. Call it after `write_snapshot`, never before. The oldest is unlinked
    first and nothing is synced: whichever unlinks a power cut undoes, good snapshots remain, and the next
    call drops the old ones again.
    """
    assert keep >= 1
    good = [number for number in snapshot_numbers(fs, paths) if number not in damaged]
    for number in reversed(good[keep:]):
        fs.unlink(paths.snapshot(number))
    return good[:keep]


def drop_leftovers(fs: Fs, paths: ShardPaths) -> list[str]:
    """Unlink the temporary files of an interrupted run in meta/; return their names.

    Call it only at a start.
    """
    leftovers = [name for name in fs.list_dir(paths.meta) if name.endswith(TEMPORARY_SUFFIX)]
    for name in leftovers:
        fs.unlink(os.path.join(paths.meta, name))
    return leftovers
