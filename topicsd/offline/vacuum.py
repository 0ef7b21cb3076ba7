"""Find the objects of a store that nothing names, and delete them: what crashes during exports left.

V1  An object is an orphan when it belongs to a topic of this directory, is older than the grace, and is named
    neither by a kept snapshot or bundle of a shard, nor by the catalog, nor by a state object that the
    catalog names: the node that adopts the topic begins with that object. Nor does a backup refer to it.
V2  A server that runs may have exported a segment since its last snapshot. So the age counts up to the oldest
    of the shards' newest snapshots, not up to now: a segment exported a grace before a snapshot is in it.
    The grace exceeds the longest stall between a PUT and the entry that names it (P5).
V3  Ages are times of the store. Its clock and ours may differ by less than the grace.
V4  The key of an object names no node, and topics of two directories may have one key prefix. With a catalog,
    only objects of topics whose row names this node are deleted: only the owner exports. Without one, the
    caller states that no other directory uses the store.
V5  Objects of unknown topics are kept, as the topic may belong to another directory. When the caller states
    that there is no other one, they are orphans, unless the catalog has the topic: it was deleted, and a
    crash came before its objects were. One that was adopted since the snapshot has a row or a bundle. A shard
    whose snapshots are damaged or missing ends the search.
V6  Probes, and temporary files of a store in a folder, are needed for seconds. They are deleted by their age
    alone, also those of other nodes.

Deletes are safe to repeat and to end at any point. Keys are never used twice, so an orphan stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from topicsd.catalog.catalog import EXTENTS_AT_ONCE, ROWS_AT_ONCE, Catalog, Extent, TopicRow
from topicsd.disk.layout import bundle_key, names_in, parse_topic_dir_name
from topicsd.engine.bundle.bundle_format import BundleDamage, decode_bundle
from topicsd.engine.checkpoint.job import objects_to_delete_of
from topicsd.engine.checkpoint.snapshot_files import DamagedSnapshot, read_snapshots
from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.engine.ownership.owned import OWNERSHIP
from topicsd.engine.ownership.state_object import state_keys
from topicsd.log.file_header import UnknownVersion
from topicsd.offline.command_error import EXIT_PROBLEM, CommandError
from topicsd.offline.data_dir import DataDir, reshard_leftovers, stray_shards
from topicsd.segment.entry import OBJECTS, STATE
from topicsd.segment.referred_stems import all_references
from topicsd.segment.store import LocalStore
from topicsd.store.file_objects import FileObjects
from topicsd.store.object_store import ObjectInfo, ObjectStore
from topicsd.store.probe import PROBES

HOUR_MS: Final = 3_600_000
GRACE_HOURS: Final = 24
GRACE_HOURS_MIN: Final = 1
STATE_READ_BYTES: Final = 8 << 20

TopicEpoch = tuple[int, int]
"""Topic id and epoch."""


class NamedObjects:
    """What a directory, and the catalog of its store, name."""

    def __init__(self) -> None:
        self.stems: set[str] = set()
        """The keys without suffix of the objects that are named."""
        self.topics: set[TopicEpoch] = set()
        """The topics whose other objects are orphans."""
        self.elsewhere: set[TopicEpoch] = set()
        """Topics of this directory whose objects another node may name (V4)."""
        self.states: dict[TopicEpoch, list[str]] = {}
        """The keys of the state objects of topics, from the catalog."""
        self.until_ms: int | None = None
        """The time of the oldest of the newest snapshots (V2); None when no shard has one, nor a topic."""
        self.has_catalog = False
        """Whether a topic was owned through a catalog when its snapshot was written."""

    def add_topic(self, topic: SnapshotTopic) -> None:
        self.topics.add((topic.topic_id, topic.epoch))
        self.has_catalog |= OWNERSHIP in topic.sections
        self.stems.update(entry.object_stem for entry in topic.segments if entry.object_stem)


class Leftovers(NamedTuple):
    """The objects that may be deleted, and counts of those that are kept although nothing here names them."""

    orphans: list[ObjectInfo]
    temporary: list[ObjectInfo]
    """Probes and temporary files."""
    named_count: int
    young_count: int
    unknown_count: int
    """Objects of topics that this directory does not know (V5)."""
    elsewhere_count: int


def read_named(data_dir: DataDir) -> NamedObjects:
    """Read what all shards of a directory name; CommandError when a shard has lost its snapshots (V5)."""
    if reshard_leftovers(data_dir) or stray_shards(data_dir):
        raise CommandError(f"{data_dir.path}: its number of shards is being changed, try again after that")
    named = NamedObjects()
    for shard in data_dir.shards:
        _read_shard(data_dir, shard, named)
    return named


def _read_shard(data_dir: DataDir, shard: int, named: NamedObjects) -> None:
    fs, paths = data_dir.fs, data_dir.paths(shard)
    advice = f"run `topicsd doctor {data_dir.path}` first"
    has_snapshot = False
    try:
        for snapshot in read_snapshots(fs, paths):
            if isinstance(snapshot, DamagedSnapshot):
                path = paths.snapshot(snapshot.number)
                raise CommandError(f"{path}: damaged: {snapshot.what}; {advice}", EXIT_PROBLEM)
            if not has_snapshot:
                created_ms = snapshot.head.created_ms
                named.until_ms = created_ms if named.until_ms is None else min(named.until_ms, created_ms)
            has_snapshot = True
            named.stems.update(objects_to_delete_of(snapshot.head))
            for topic in snapshot.topics:
                named.add_topic(topic)
        hot = LocalStore(fs, paths.root)
        for directory in names_in(fs, paths.topics):
            incarnation = parse_topic_dir_name(directory)
            if incarnation is None:
                continue
            if not has_snapshot:
                raise CommandError(f"{paths.meta}: no snapshot, but segments; {advice}", EXIT_PROBLEM)
            key = bundle_key(*incarnation)
            if hot.exists(key):
                named.add_topic(decode_bundle(hot.read_range(key, 0, hot.size(key))).topic)
    except (UnknownVersion, BundleDamage) as error:
        raise CommandError(f"{paths.root}: {error}; {advice}", EXIT_PROBLEM) from None


def add_catalog(named: NamedObjects, catalog: Catalog, node: str) -> None:
    """Add what the catalog names; leave out the topics of other nodes, and those that it lacks (V4)."""
    owned: set[TopicEpoch] = set()
    for row in _rows(catalog):
        incarnation = (row.topic_id, row.incarnation)
        if row.owner != node or incarnation not in named.topics:
            named.elsewhere.add(incarnation)
            continue
        owned.add(incarnation)
        keys = list(_keys_of(catalog, row))
        named.stems.update(map(_stem, keys))
        named.states[incarnation] = [key for key in keys if key.endswith(STATE)]
    named.elsewhere |= named.topics - owned
    named.topics &= owned


def _rows(catalog: Catalog) -> Iterator[TopicRow]:
    after = ""
    while rows := catalog.list("", after, ROWS_AT_ONCE):
        yield from rows
        after = rows[-1].name


def _keys_of(catalog: Catalog, row: TopicRow) -> Iterator[str]:
    """Yield what the extents name, and the states that an adopt may read: a row keeps that of its seal."""
    seq = 0
    newest: list[Extent] = []
    while extents := catalog.extents_from(row.name, seq, EXTENTS_AT_ONCE):
        for extent in extents:
            yield from (one.key for one in extent.objects)
        newest = extents[-1:]
        seq = extents[-1].last_seq + 1
    yield from state_keys(row, newest)


def find_leftovers(
    store: ObjectStore,
    files: FileObjects | None,
    named: NamedObjects,
    now_ms: int,
    grace_ms: int,
    is_sole: bool = False,
) -> Leftovers:
    """List the store and sort its objects; `files` is the store itself when it is a folder.

    With `is_sole` no other directory uses the store (V5).
    """
    before_ms = now_ms - grace_ms
    export_before_ms = min(now_ms if named.until_ms is None else named.until_ms, now_ms) - grace_ms
    orphans: list[ObjectInfo] = []
    referred = {stem for one in all_references(store) for stem in one.stems}
    temporary = [one for one in store.list(f"{PROBES}/") if one.modified_ms < before_ms]
    counts = dict.fromkeys(("named", "young", "unknown", "elsewhere"), 0)
    for one in store.list(f"{OBJECTS}/"):
        incarnation = _incarnation_of(one.key)
        if _stem(one.key) in named.stems or _stem(one.key) in referred:
            counts["named"] += 1
        elif incarnation in named.elsewhere:
            counts["elsewhere"] += 1
        elif incarnation not in named.topics and (incarnation is None or not is_sole):
            counts["unknown"] += 1
        elif one.modified_ms >= export_before_ms:
            counts["young"] += 1
        else:
            orphans.append(one)
    if files is not None:
        for folder in (OBJECTS, PROBES):
            temporary += [one for one in files.temporary_files(f"{folder}/") if one.modified_ms < before_ms]
    in_states = _stems_in_states(store, named, {_incarnation_of(one.key) for one in orphans})
    kept = [one for one in orphans if _stem(one.key) in in_states]
    counts["named"] += len(kept)
    orphans = [one for one in orphans if _stem(one.key) not in in_states]
    return Leftovers(orphans, temporary, *counts.values())


def _stems_in_states(
    store: ObjectStore, named: NamedObjects, topics: Iterable[TopicEpoch | None]
) -> set[str]:
    """Return what the state objects of these topics name; read only when there is something to delete."""
    stems: set[str] = set()
    for incarnation in named.states.keys() & topics:
        for key in named.states[incarnation]:
            data = b""
            try:
                while part := store.read(key, len(data), STATE_READ_BYTES):
                    data += part
                segments = decode_bundle(data).topic.segments
            except (BundleDamage, UnknownVersion) as error:
                raise CommandError(f"{store.url}/{key}: {error}", EXIT_PROBLEM) from None
            except FileNotFoundError:
                # Its owner may have replaced it since the catalog was read.
                raise CommandError(
                    f"{store.url}/{key}: missing, and the catalog named it; run the command again",
                    EXIT_PROBLEM,
                ) from None
            stems.update(entry.object_stem for entry in segments)
    return stems


def delete_objects(store: ObjectStore, objects: Iterable[ObjectInfo]) -> None:
    """Delete these objects; raises StoreUnavailable or StoreRefused."""
    for one in objects:
        store.delete(one.key)


def _stem(key: str) -> str:
    return key.rpartition(".")[0]


def _incarnation_of(key: str) -> TopicEpoch | None:
    """Return topic id and epoch of the key of an object, or None for a foreign key.

    >>> _incarnation_of("segments/0000000000000007-1024/1-seg-0000000000010001-2-5f9a01c2.data")
    (7, 1024)
    """
    parts = key.split("/")
    return parse_topic_dir_name(parts[1]) if len(parts) == 3 else None
