"""The layout of a data directory: every name in it, made and parsed, and LAYOUT.json.

::

    <data_dir>/LAYOUT.json            format version, shard count, instance id, checksum
               PLACEMENT.json         topics that are not where the rule places them (`placement_file.py`)
               KEYS.json              named keys, by their digests (`key_file.py`); absent without one
               RESTORING              while a backup is restored: its id
               LOCK                   held by the server
               shards/00/LOCK         held by the shard's worker for its life
                        wal/          CURRENT and the WAL files
                        quarantine/   bytes that a recovery cut off; never deleted by the server
                        topics/       0123456789abcdef-1024/: one per incarnation, topic id and epoch; in it
                                      seg-0000000000000001.data, .idx, .tags, .del, or, after compaction,
                                      seg-0000000000000001-2.data and so on, with its generation;
                                      bundle.bin in the directory of a topic that was adopted lately
                        meta/         snapshot.00000007.bin, MANIFEST.json
                        meta/readers/ a lock file for each outside reader
                        trash/        dropped files, kept for outside readers for a grace period
                        incoming/     a folder for each topic that is being restored under another name
               reshard.new/   a data directory that a reshard is building; not in use
               reshard.ready/ the same after its commit, until its parts have taken their places

LAYOUT.json is written last, after all shard directories are synced. So if it exists and a shard is missing,
the shard was lost, and the server refuses to start an empty one in its place. Directories that may be empty
are made again, since many copy tools leave them out (`restore_empty_dirs`).
"""

from __future__ import annotations

import os
import re
import shlex
from typing import NamedTuple

import msgspec
import xxhash

from topicsd.disk.atomic_replace import exists, read_all, replace_file
from topicsd.disk.fs import Fs

LAYOUT_FORMAT = 1
LAYOUT_NAME = "LAYOUT.json"
RESTORING_NAME = "RESTORING"
"""The note of a restore that has not ended: the id of its backup."""
LAYOUT_BYTES_MAX = 4096
INSTANCE_BYTES = 16
BUNDLE_NAME = "bundle.bin"
SHARD_COUNT_MAX = 1024
STAGED_NAME = "reshard.new"
COMMITTED_NAME = "reshard.ready"

_WAL_NAME = re.compile(r"wal-(\d{16})\.log", re.ASCII)
_TOPIC_DIR_NAME = re.compile(r"([0-9a-f]{16})-([1-9]\d*)", re.ASCII)
_SEGMENT_NAME = re.compile(r"seg-(\d{16})(?:-([1-9]\d*))?(\.data|\.idx|\.tags|\.del)", re.ASCII)
_SNAPSHOT_NAME = re.compile(r"snapshot\.(\d{8})\.bin", re.ASCII)
_TRASH_NAME = re.compile(r"(\d{16})-(\d+)-(.+)", re.ASCII)
_SHARD_NAME = re.compile(r"\d{2,4}", re.ASCII)
_TOKEN = re.compile(r"[0-9a-f]{16}", re.ASCII)
_SPARE_NAME = re.compile(r"spare-\d+\.log", re.ASCII)


class LayoutError(Exception):
    """A directory that is not a data directory, or has missing or damaged parts; names the path."""


class LayoutDamaged(LayoutError):
    """A LAYOUT.json that is missing or damaged but can be written again from the shards."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The content of LAYOUT.json."""

    format: int
    shards: int
    instance: str
    directories: int | msgspec.UnsetType = msgspec.UNSET
    """While shards are added or removed: how many directories shards/ may have (`shard_dirs.py`)."""
    checksum: str = ""

    @property
    def instance_bytes(self) -> bytes:
        return bytes.fromhex(self.instance)


class ShardPaths(NamedTuple):
    """The paths of one shard's directory, which is self-contained."""

    root: str

    @property
    def lock(self) -> str:
        return os.path.join(self.root, "LOCK")

    @property
    def wal(self) -> str:
        return os.path.join(self.root, "wal")

    @property
    def current(self) -> str:
        return os.path.join(self.root, "wal", "CURRENT")

    @property
    def quarantine(self) -> str:
        return os.path.join(self.root, "quarantine")

    @property
    def topics(self) -> str:
        return os.path.join(self.root, "topics")

    @property
    def meta(self) -> str:
        return os.path.join(self.root, "meta")

    @property
    def readers(self) -> str:
        return os.path.join(self.root, "meta", "readers")

    @property
    def manifest(self) -> str:
        return os.path.join(self.root, "meta", "MANIFEST.json")

    @property
    def reserve(self) -> str:
        """The name of a file for an instant: it is held open without one (`engine/checkpoint/reserve.py`)."""
        return os.path.join(self.root, "meta", "reserve.tmp")

    @property
    def spool(self) -> str:
        """The name of a file for an instant: it is held open without one (`engine/spool.py`)."""
        return os.path.join(self.root, "meta", "spool.tmp")

    @property
    def trash(self) -> str:
        return os.path.join(self.root, "trash")

    def incoming(self, token: str) -> str:
        return os.path.join(self.root, "incoming", token)

    def topic_dir(self, topic_id: int, epoch: int) -> str:
        return os.path.join(self.root, "topics", topic_dir_name(topic_id, epoch))

    def bundle(self, topic_id: int, epoch: int) -> str:
        return os.path.join(self.root, bundle_key(topic_id, epoch))

    def snapshot(self, number: int) -> str:
        return os.path.join(self.root, "meta", snapshot_name(number))

    def wal_file(self, first_ordinal: int) -> str:
        return os.path.join(self.root, "wal", wal_name(first_ordinal))

    def spare_file(self, number: int) -> str:
        return os.path.join(self.root, "wal", f"spare-{number}.log")

    @property
    def optional_dirs(self) -> tuple[str, ...]:
        """The directories that may be empty, each before its subdirectories."""
        return (self.wal, self.quarantine, self.topics, self.meta, self.readers, self.trash)

    def quarantine_file(self, name: str) -> str:
        return os.path.join(self.root, "quarantine", name)


def lock_path(data_dir: str) -> str:
    """Return the path of the server's lock; each shard has its own lock."""
    return os.path.join(data_dir, "LOCK")


def shards_path(data_dir: str) -> str:
    return os.path.join(data_dir, "shards")


def staged_path(data_dir: str) -> str:
    """Return the path of the directory that a reshard builds."""
    return os.path.join(data_dir, STAGED_NAME)


def committed_path(data_dir: str) -> str:
    """Return the path of a committed reshard; while it has a LAYOUT.json, the shards are moving."""
    return os.path.join(data_dir, COMMITTED_NAME)


def wal_name(first_ordinal: int) -> str:
    return f"wal-{first_ordinal:016d}.log"


def parse_wal_name(name: str) -> int | None:
    """Return the ordinal of a WAL file's first frame, or None when the name is not one."""
    match = _WAL_NAME.fullmatch(name)
    return int(match[1]) if match else None


def bundle_key(topic_id: int, epoch: int) -> str:
    """Return the key of the bundle file of an adopted topic in the store of segments."""
    return f"topics/{topic_dir_name(topic_id, epoch)}/{BUNDLE_NAME}"


def topic_dir_name(topic_id: int, epoch: int) -> str:
    return f"{topic_id:016x}-{epoch}"


def parse_topic_dir_name(name: str) -> tuple[int, int] | None:
    """Return topic id and epoch, or None when the name is not that of a topic directory."""
    match = _TOPIC_DIR_NAME.fullmatch(name)
    return (int(match[1], 16), int(match[2])) if match else None


def segment_stem(first_seq: int, generation: int) -> str:
    """Return the common start of the names of a segment's files; generation 0 is not named."""
    return f"seg-{first_seq:016d}-{generation}" if generation else f"seg-{first_seq:016d}"


def parse_segment_name(name: str) -> tuple[int, int, str] | None:
    """Return first seq, generation and suffix, or None when the name is not a segment file's."""
    match = _SEGMENT_NAME.fullmatch(name)
    return (int(match[1]), int(match[2] or 0), match[3]) if match else None


def snapshot_name(number: int) -> str:
    return f"snapshot.{number:08d}.bin"


def parse_snapshot_name(name: str) -> int | None:
    match = _SNAPSHOT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def trash_name(dropped_ms: int, number: int, name: str) -> str:
    """Return a name in the trash; `number` makes it unique, and names sort by time."""
    return f"{dropped_ms:016d}-{number}-{name}"


def parse_trash_name(name: str) -> tuple[int, int, str] | None:
    """Return the time of the drop, the number and the original name, or None."""
    match = _TRASH_NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3]) if match else None


def is_token(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None


def is_leftover_name(name: str) -> bool:
    """Return whether the file was unfinished when a process ended, and never part of the log."""
    return _SPARE_NAME.fullmatch(name) is not None or name.endswith(".tmp")


def shard_paths(data_dir: str, shard: int) -> ShardPaths:
    return ShardPaths(os.path.join(shards_path(data_dir), f"{shard:02d}"))


def create_data_dir(fs: Fs, data_dir: str, shard_count: int, instance: bytes) -> Layout:
    """Make a new data directory; after a crash in the middle it can be called again.

    That of a stateless node has no shards, and keeps the id of the node.
    """
    assert 0 <= shard_count <= SHARD_COUNT_MAX
    assert len(instance) == INSTANCE_BYTES
    shards_dir = shards_path(data_dir)
    make_dirs(fs, data_dir)
    _make_dir(fs, shards_dir)
    _refuse_log(fs, data_dir, shards_dir)
    for shard in range(shard_count):
        make_shard_dirs(fs, shard_paths(data_dir, shard))
    fs.sync_dir(shards_dir)
    fs.sync_dir(data_dir)
    layout = make_layout(shard_count, instance)
    write_layout(fs, data_dir, layout)
    return layout


def read_layout(fs: Fs, data_dir: str) -> Layout | None:
    """Read and check the layout of a data directory; None when it has none yet."""
    path = os.path.join(data_dir, LAYOUT_NAME)
    try:
        if exists(fs, os.path.join(committed_path(data_dir), LAYOUT_NAME)):
            raise LayoutError(
                f"{data_dir}: a reshard was interrupted while it renamed shards; nothing is lost: start the "
                f"server, or run: {reshard_command(data_dir)}"
            )
        text = read_all(fs, path, LAYOUT_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        _refuse_unfinished_restore(fs, data_dir)
        return None
    try:
        layout = msgspec.json.decode(text, type=Layout)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LayoutDamaged(_damage_message(data_dir, str(error))) from None
    if layout.format != LAYOUT_FORMAT:
        raise LayoutError(
            f"{path}: unknown format {layout.format}; this program reads format {LAYOUT_FORMAT}"
        )
    if layout != with_checksum(layout):
        raise LayoutDamaged(_damage_message(data_dir, "its checksum does not match"))
    for shard in range(layout.shards):
        _check_shard(fs, data_dir, layout, shard)
    return layout


def make_layout(shard_count: int, instance: bytes) -> Layout:
    return with_checksum(Layout(format=LAYOUT_FORMAT, shards=shard_count, instance=instance.hex()))


def write_layout(fs: Fs, data_dir: str, layout: Layout) -> None:
    text = msgspec.json.format(msgspec.json.encode(layout)) + b"\n"
    replace_file(fs, os.path.join(data_dir, LAYOUT_NAME), text)


def shard_numbers(fs: Fs, data_dir: str) -> list[int]:
    """Return the numbers of the shards that have a directory."""
    return [int(name) for name in names_in(fs, shards_path(data_dir)) if _SHARD_NAME.fullmatch(name)]


def restore_empty_dirs(fs: Fs, data_dir: str, layout: Layout) -> list[str]:
    """Make the directories that a copy left out because they were empty; return their paths."""
    missing = []
    for shard in range(layout.shards):
        paths = shard_paths(data_dir, shard)
        absent = [path for path in paths.optional_dirs if not exists(fs, path)]
        for path in absent:
            fs.make_dir(path)
        if absent:
            fs.sync_dir(paths.meta)
            fs.sync_dir(paths.root)
        missing += absent
    return missing


def names_in(fs: Fs, path: str) -> list[str]:
    """Return the names in a directory; none when it is missing, as a copy may leave it out."""
    try:
        return fs.list_dir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _check_shard(fs: Fs, data_dir: str, layout: Layout, shard: int) -> None:
    """Raise LayoutError when a shard, or its log, is missing.

    A shard without any subdirectory was never written: a copy left the empty ones out. If it has another
    subdirectory, wal/ was lost.
    """
    paths = shard_paths(data_dir, shard)
    lost = paths.root
    if exists(fs, paths.root):
        if exists(fs, paths.wal) or not any(exists(fs, path) for path in paths.optional_dirs):
            return
        lost = paths.wal
    count = "1 shard" if layout.shards == 1 else f"{layout.shards} shards"
    raise LayoutError(
        f"{lost}: missing, but {LAYOUT_NAME} names {count}: the topics of shard {shard:02d} are lost; "
        "restore it from a backup"
    )


def make_shard_dirs(fs: Fs, paths: ShardPaths) -> None:
    """Make and sync the directories of a new shard; the caller syncs the one that holds them."""
    for path in (paths.root, paths.wal, paths.quarantine):
        _make_dir(fs, path)
    make_segment_dirs(fs, paths)


def make_segment_dirs(fs: Fs, paths: ShardPaths) -> None:
    """Make the missing subdirectories of a shard; earlier versions made only the log's.

    They are synced even when none was missing: an earlier process may have crashed before its sync, and a
    power cut would then remove a directory with all its segments.
    """
    for path in (paths.topics, paths.meta, paths.readers, paths.trash):
        _make_dir(fs, path)
    fs.sync_dir(paths.meta)
    fs.sync_dir(paths.root)


def _refuse_unfinished_restore(fs: Fs, data_dir: str) -> None:
    try:
        is_unfinished = exists(fs, os.path.join(data_dir, RESTORING_NAME))
    except NotADirectoryError:
        return
    if is_unfinished:
        raise LayoutError(
            f"{data_dir}: a restore has not ended here; run the same `topicsd backup restore` again"
        )


def with_checksum(layout: Layout) -> Layout:
    """Return the layout with its checksum."""
    without_checksum = msgspec.json.encode(msgspec.structs.replace(layout, checksum=""))
    return msgspec.structs.replace(layout, checksum=xxhash.xxh3_64_hexdigest(without_checksum))


def _damage_message(data_dir: str, why: str) -> str:
    path = os.path.join(data_dir, LAYOUT_NAME)
    return f"{path}: damaged: {why}{rebuild_advice(data_dir)}"


def rebuild_advice(data_dir: str) -> str:
    """Return the end of a message about a lost LAYOUT.json: the command that rebuilds the file."""
    return f"; to rebuild it from the shards, run: {doctor_command(data_dir)}"


def doctor_command(data_dir: str) -> str:
    return f"topicsd doctor {shlex.quote(data_dir)}"


def reshard_command(data_dir: str) -> str:
    """Return the command that finishes or undoes an interrupted reshard."""
    return f"topicsd reshard {shlex.quote(data_dir)}"


def _refuse_log(fs: Fs, data_dir: str, shards_dir: str) -> None:
    """Raise LayoutDamaged when any shard has a log: then the layout was lost.

    Every directory is checked, since the new shard count may be lower than the old one.
    """
    for name in fs.list_dir(shards_dir):
        wal = ShardPaths(os.path.join(shards_dir, name)).wal
        try:
            names = fs.list_dir(wal)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if any(parse_wal_name(file_name) is not None for file_name in names):
            path = os.path.join(data_dir, LAYOUT_NAME)
            raise LayoutDamaged(f"{path}: missing, but {wal} holds a log{rebuild_advice(data_dir)}")


def _make_dir(fs: Fs, path: str) -> None:
    if not exists(fs, path):
        fs.make_dir(path)


def make_dirs(fs: Fs, path: str) -> None:
    """Make a directory and its missing parents, and sync each name in its parent."""
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    if not exists(fs, path):
        if not exists(fs, parent):
            make_dirs(fs, parent)
        fs.make_dir(path)
    # Also for an existing directory: an earlier process may have crashed before this sync.

    fs.sync_dir(parent)
