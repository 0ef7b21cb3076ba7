"""The restore of one topic of a backup under another name, into a running server.

The command does the work: the server reads nothing but a finished folder in its own data directory.

C1  The shard that had the topic is restored into a folder, without the `.data` of its other topics, and
    loaded as a start would load it. So the copy is of the point, like everything in the backup.
C2  The topic is gathered as a bundle. Its segments are written again: each record is checked, and gets the id
    of the new name. Idempotency keys are left out, since they are digests of the old id. Leases end.
C3  The bundle file is written last, then the server is asked to adopt the folder.
C4  The folder of a running command is locked. The next command removes those of killed ones.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Final

import msgspec

from shared.contract.names import refuse_topic_name, topic_id
from shared.ipc.placement import Placement, decode_placement
from shared.runtime.clock import Clock
from topicsd.backup.manifest import BackupManifest
from topicsd.backup.repository import BackupError, Repository
from topicsd.backup.restore import Restorer
from topicsd.backup.server_call import ServerRequest, Source, call_server
from topicsd.disk.atomic_replace import replace_file
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs
from topicsd.disk.layout import BUNDLE_NAME, ShardPaths, make_dirs, names_in, topic_dir_name
from topicsd.engine.bundle.bundle_format import Bundle, encode_bundle
from topicsd.engine.bundle.contents import NotMovable, gather_loaded
from topicsd.engine.bundle.staged_topic import SECTIONS, STAGED_EPOCH
from topicsd.engine.checkpoint.segment_copy import Files
from topicsd.engine.queue.state import without_leases
from topicsd.engine.upkeep.scrub import PART_BYTES, part_end
from topicsd.log.frame import FrameDamage
from topicsd.offline.data_dir import DataDir, layout_of
from topicsd.offline.loaded_shard import LoadedShard, objects_of
from topicsd.segment.data_file import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    with_topic_id,
)
from topicsd.segment.entry import DATA, HOT, INDEX, TAGS, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.index_file import SegmentIndex, encode_entries, encode_footer
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import encode_tags

RESTORE_SECONDS: Final = 600.0


class TopicCopier:
    """Copies topics of one backup into the server of a data directory."""

    def __init__(
        self,
        fs: Fs,
        clock: Clock,
        repository: Repository,
        manifest: BackupManifest,
        target: DataDir,
        source: Source,
        on_bytes: Callable[[int], object],
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._repository = repository
        self._manifest = manifest
        self._target = target
        self._source = source
        self._on_bytes = on_bytes

    def copy(self, name: str, new_name: str) -> int:
        """Restore a topic under a new name; return its head, or raise BackupError."""
        refusal = refuse_topic_name(new_name)
        if refusal is not None:
            raise BackupError(f"--topic: {refusal.message}")
        shard = self._target.placement.owner_of(new_name)
        incoming = os.path.dirname(self._target.paths(shard).incoming("0"))
        make_dirs(self._fs, incoming)
        self._remove_leftovers(incoming)
        token = secrets.token_hex(8)
        folder = os.path.join(incoming, token)
        make_dirs(self._fs, folder)
        try:
            with ExitStack() as stack:
                stack.callback(DirLock(self._fs, os.path.join(folder, "LOCK")).release)
                self._stage(name, new_name, folder)
                request = ServerRequest(
                    "restore",
                    f"/v0/topics/{new_name}/restore",
                    str(shard),
                    f'topic "{new_name}"',
                    RESTORE_SECONDS,
                    new_name,
                    msgspec.json.encode({"folder": token}),
                )
                answer = call_server(self._fs, self._target.path, self._source, request)
                head: int = msgspec.json.decode(answer)["head_seq"]
                return head
        finally:
            _remove_tree(self._fs, folder)

    def _remove_leftovers(self, incoming: str) -> None:
        for name in names_in(self._fs, incoming):
            folder = os.path.join(incoming, name)
            with suppress(DirectoryInUse, FileNotFoundError):
                DirLock(self._fs, os.path.join(folder, "LOCK")).release()
                _remove_tree(self._fs, folder)

    def _stage(self, name: str, new_name: str, folder: str) -> None:
        """Write the bundle and the segments of the topic, with its new name, into the folder."""
        shards = self._manifest.head.shards
        placement = (
            decode_placement(self._manifest.placement, "the placement of the backup", shards)
            if self._manifest.placement
            else Placement(shards)
        )
        shard = placement.owner_of(name)
        whole, tail = os.path.join(folder, "backup"), ShardPaths(os.path.join(folder, "tail"))
        Restorer(self._fs, self._repository, self._only(shard, name), whole, self._on_bytes).run()
        layout = layout_of(self._fs, whole)
        data_dir = DataDir(self._fs, whole, layout, placement, [shard], self._manifest.store_url)
        make_dirs(self._fs, tail.topics)
        with ExitStack() as stack:
            loaded = stack.enter_context(closing(LoadedShard(data_dir, shard, self._clock)))
            loaded.walk()
            if loaded.problem or loaded.log.problem:
                raise BackupError(f"shard {shard:02d}: {loaded.problem or loaded.log.problem}")
            topic = loaded.state.topics.get(name)
            if topic is None:
                raise BackupError(f'backup {self._manifest.head.id} has no topic "{name}"')
            files = Files(self._fs, tail, data_dir.identity(shard), loaded.state.files)
            is_exact = self._manifest.shards[shard].are_heads_exact
            try:
                bundle = gather_loaded(loaded.state, topic, files, heads_exact=is_exact)
            except NotMovable as error:
                raise BackupError(str(error)) from None
            hot = stack.enter_context(closing(LocalStore(self._fs, data_dir.paths(shard).root)))
            new = stack.enter_context(closing(LocalStore(self._fs, tail.root)))
            # First the new files: a segment that was active has been continued there.
            reader = SegmentReader(new, hot, objects_of(self._manifest.store_url, self._fs))
            renamed = _renamed(bundle, new_name)
            make_dirs(
                self._fs, os.path.join(folder, "topics", topic_dir_name(topic_id(new_name), STAGED_EPOCH))
            )
            target = stack.enter_context(closing(LocalStore(self._fs, folder)))
            try:
                for entry in bundle.topic.segments:
                    _write_segment(reader, bundle.name_of(entry), entry, target, renamed)
            except (SegmentDamage, FrameDamage) as damage:
                raise BackupError(f'topic "{name}": damaged in the backup: {damage}') from None
        replace_file(self._fs, os.path.join(folder, BUNDLE_NAME), encode_bundle(renamed))

    def _only(self, shard: int, name: str) -> BackupManifest:
        """Return the manifest without what is not needed to load the topic (C1)."""
        own = f"/topics/{topic_id(name):016x}-"
        contents = []
        for content in self._manifest.shards:
            files = [
                file
                for file in content.files
                if content.shard == shard and (not file.path.endswith(DATA) or own in file.path)
            ]
            log_file = content.log_file if content.shard == shard else 0
            contents.append(msgspec.structs.replace(content, files=files, log_file=log_file))
        return self._manifest._replace(shards=contents)


def _remove_tree(fs: Fs, path: str) -> None:
    """Remove what is left of a folder; nothing of it is needed."""
    for name in names_in(fs, path):
        child = os.path.join(path, name)
        try:
            fs.list_dir(child)
        except NotADirectoryError:
            fs.unlink(child)
        else:
            _remove_tree(fs, child)
    fs.remove_dir(path)


def _renamed(bundle: Bundle, name: str) -> Bundle:
    """Return the bundle as that of a new topic (C2)."""
    entry = bundle.topic
    sections = {key: value for key, value in without_leases(entry.sections).items() if key in SECTIONS}
    segments = [msgspec.structs.replace(one, tier=HOT, object_stem="") for one in entry.segments]
    topic = msgspec.structs.replace(
        entry, name=name, topic_id=topic_id(name), epoch=STAGED_EPOCH, sections=sections, segments=segments
    )
    return Bundle(topic, bundle.marks, [])


def _write_segment(
    reader: SegmentReader, name: SegmentName, entry: SegmentEntry, target: LocalStore, renamed: Bundle
) -> None:
    index = reader.load_index(name, entry)
    if index.has_damage:
        raise SegmentDamage(name, entry.first_seq, entry.last_seq, "records are damaged")
    new_name = renamed.name_of(entry)
    data = b"".join(_data(reader, name, entry, index, new_name))
    entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
    _put(target, new_name.key(DATA), data)
    _put(target, new_name.key(INDEX), entries + encode_footer(entries))
    if entry.has_tags:
        _put(target, new_name.key(TAGS), encode_tags(reader.all_tags(name, entry), entry.first_seq))


def _data(
    reader: SegmentReader, name: SegmentName, entry: SegmentEntry, index: SegmentIndex, new_name: SegmentName
) -> Iterator[bytes]:
    # The adopting shard replaces the header.
    yield encode_segment_header(SegmentHeader(0, bytes(16), *new_name))
    size, seq = SEGMENT_HEADER_BYTES, entry.first_seq
    while seq <= entry.last_seq:
        last = part_end(index, seq, PART_BYTES)
        data, start = reader.frames(name, entry, index, seq, last)
        assert start == size or not data
        reader.check_frames(name, index, data, start, seq, last)
        yield with_topic_id(
            data, index.lengths[seq - entry.first_seq : last + 1 - entry.first_seq], new_name.topic_id
        )
        size, seq = size + len(data), last + 1


def _put(store: LocalStore, key: str, data: bytes) -> None:
    store.put(key, partial(_slice, data), len(data))


def _slice(data: bytes, offset: int, size: int) -> bytes:
    return data[offset : offset + size]
