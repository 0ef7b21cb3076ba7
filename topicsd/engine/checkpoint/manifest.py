"""MANIFEST.json: the boundary up to which outside readers (Spark, a backup, a tool) may read a shard.

It is JSON with one topic per line, so that a person can search it with `grep` and a tool can stream it::

    {"format":1,"instance":"...","shard":0,"number":7,...,"wal":{...},"topic_count":2,"topics":[
    {"name":"a",...,"segments":[...]},
    {"name":"b",...,"segments":[...]}
    ],"checksum":"0123456789abcdef"}

Verification: the checksum is the xxh3_64, as 16 hex digits, of all bytes before the last line, which
`head -n -1 MANIFEST.json | xxhsum -H3` prints.

Guarantees for readers:

M1  A record is in the segments named here or in the log from `wal` on. Frames of a topic below its
    `complete_to` are in the segments, even if they are after `wal` in the log.
M2  Of a segment, only the first `data_bytes` bytes of `.data` and the first `count` entries of `.idx` are
    valid. In an unsealed segment, bytes after them are being written.
M3  A segment is `<dir>/<stem>` and `.data`, `.idx`, `.tags`, `.del` below the shard's directory. When it has
    an `object_stem`, the objects of that key and `.data`, `.idx`, `.tags` in the store `store_url` are the
    same; when its tier is cold too, `.data` is only there. When its tier is cold and it has no `object_stem`,
    its files are below `<cold_dir>/shards/<NN>`. There is a `.del` when `dead_count` is not 0.
M4  Records below `earliest_seq` and in `lost` do not exist, even if files still contain them.
M5  A topic in `departed` has its present state on another node, also when its segments are here.
M6  A dropped file stays in trash/ for the grace time, or as long as a reader's lock is held. A reader that
    finds a file missing reads the manifest again.

The manifest contains nothing that the snapshot does not, and no server reads it: a shard starts without it,
or with a damaged one.

Changes of the format: fields are added, and readers ignore fields that they do not know. For any other change
raise MANIFEST_FORMAT.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import xxhash

from shared.contract.topic_config import Discard, Durability, TopicType
from shared.settings.store_url import store_folder
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, segment_stem, topic_dir_name
from topicsd.engine.checkpoint.snapshot_files import write_whole
from topicsd.engine.checkpoint.snapshot_format import SnapshotHead, SnapshotTopic
from topicsd.engine.ownership.departed import Departed, departed_of
from topicsd.log.file_header import UnknownVersion
from topicsd.log.files import LogPlace
from topicsd.segment.entry import SegmentEntry

MANIFEST_FORMAT = 1

_TAIL = re.compile(rb'\],"checksum":"([0-9a-f]{16})"\}\n', re.ASCII)
_TAIL_BYTES = len('],"checksum":"0123456789abcdef"}\n')


class ManifestDamage(Exception):
    """MANIFEST.json is damaged; the message says how."""


class ManifestPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place in the log where a reader continues: a boundary between two batches."""

    file: int
    offset: int
    ordinal: int
    chain: str
    """16 hex digits: many JSON readers have no 64-bit integers."""


class ManifestSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment in the manifest."""

    first_seq: int
    count: int
    generation: int
    stem: str
    tier: str
    data_bytes: int
    sealed: bool
    live_count: int
    dead_count: int
    has_tags: bool
    first_ts: int
    last_ts: int
    live_bytes: int = 0
    object_stem: str = ""


class ManifestTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in the manifest, with its segments."""

    name: str
    id: str
    epoch: int
    dir: str
    type: TopicType
    durability: Durability
    ttl_ms: int
    head: int
    durable_seq: int
    evict_floor: int
    earliest_seq: int
    delete_below: int
    evicted_to: dict[str, int]
    lost: list[tuple[int, int, str]]
    complete_to: int
    segments: list[ManifestSegment]
    cap_records: int = 0
    cap_bytes: int = 0
    """With `live_bytes`: what a reader needs to find the evictions in the log after `wal`."""
    discard: Discard = "old"


class ManifestDeparted(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that this node must not serve any more."""

    name: str
    id: str
    epoch: int
    state: str
    node: str
    owner_epoch: int
    since_ms: int


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the first line, which also opens the list of topics."""

    format: int = MANIFEST_FORMAT
    instance: str
    shard: int
    number: int
    """The number of the snapshot with the same content."""
    ts: int
    cold_dir: str | None
    """The folder of a `file:` store, where earlier versions put cold segments."""
    store_url: str = ""
    departed: list[ManifestDeparted] = []
    wal: ManifestPlace
    topic_count: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest, as a reader receives it."""

    format: int
    instance: str
    shard: int
    number: int
    ts: int
    cold_dir: str | None
    wal: ManifestPlace
    topic_count: int
    topics: list[ManifestTopic]
    store_url: str = ""
    departed: list[ManifestDeparted] = []


class _Format(msgspec.Struct):
    format: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Manifest)
_format_decoder = msgspec.json.Decoder(_Format)


def manifest_head(head: SnapshotHead, store_url: str) -> ManifestHead:
    """Return the head of the manifest that belongs to a snapshot; without a store the URL is empty."""
    return ManifestHead(
        instance=head.instance.hex(),
        shard=head.shard,
        number=head.number,
        ts=head.created_ms,
        cold_dir=store_folder(store_url) or None,
        store_url=store_url,
        departed=[_departed(one) for one in departed_of(head)],
        wal=_place(head.start),
        topic_count=head.topic_count,
    )


def _departed(one: Departed) -> ManifestDeparted:
    fields = msgspec.structs.asdict(one)
    return ManifestDeparted(id=f"{fields.pop('topic_id'):016x}", **fields)


def _place(place: LogPlace) -> ManifestPlace:
    return ManifestPlace(
        file=place.file, offset=place.offset, ordinal=place.ordinal, chain=f"{place.chain:016x}"
    )


def topic_line(entry: SnapshotTopic, durable_seq: int) -> bytes:
    """Encode one topic as a line, without its end."""
    config = entry.config
    topic = ManifestTopic(
        name=entry.name,
        id=f"{entry.topic_id:016x}",
        epoch=entry.epoch,
        dir=f"topics/{topic_dir_name(entry.topic_id, entry.epoch)}",
        type=config.type,
        durability=config.durability,
        ttl_ms=config.ttl_ms,
        head=entry.head,
        durable_seq=durable_seq,
        evict_floor=entry.evict_floor,
        earliest_seq=entry.earliest_seq,
        # Deletes from the front move only `earliest_seq`, so both are one number.
        delete_below=entry.earliest_seq,
        evicted_to=entry.evicted_to,
        lost=entry.lost,
        complete_to=entry.complete_to,
        segments=[_segment(segment) for segment in entry.segments],
        cap_records=config.cap_records,
        cap_bytes=config.cap_bytes,
        discard=config.discard,
    )
    return _encoder.encode(topic)


def _segment(entry: SegmentEntry) -> ManifestSegment:
    return ManifestSegment(
        first_seq=entry.first_seq,
        count=entry.count,
        generation=entry.generation,
        stem=segment_stem(entry.first_seq, entry.generation),
        tier=entry.tier,
        data_bytes=entry.data_bytes,
        sealed=entry.is_sealed,
        live_count=entry.live_count,
        dead_count=entry.dead_count,
        has_tags=entry.has_tags,
        object_stem=entry.object_stem,
        first_ts=entry.first_ts,
        last_ts=entry.last_ts,
        live_bytes=entry.live_bytes,
    )


def manifest_parts(head: ManifestHead, lines: Sequence[bytes]) -> list[bytes]:
    """Return the whole file as a list of parts, in order."""
    assert head.topic_count == len(lines)
    opening = _encoder.encode(head).removesuffix(b"}") + b',"topics":[\n'
    parts = [opening, *(line + b",\n" for line in lines[:-1]), *(line + b"\n" for line in lines[-1:])]
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    parts.append(f'],"checksum":"{checksum.hexdigest()}"}}\n'.encode())
    return parts


def write_manifest(fs: Fs, paths: ShardPaths, parts: Iterable[bytes]) -> None:
    """Replace the manifest atomically: a reader finds the old one or the new one, whole.

    Call it after the snapshot is written, never before: the files that it names have to survive a power cut
    too. And call it before dropping files: a reader finds the named files, or learns from trash/ that its
    manifest is outdated.
    """
    write_whole(fs, paths.manifest, parts)


def read_manifest(fs: Fs, paths: ShardPaths) -> Manifest:
    """Return the published state of a shard.

    FileNotFoundError when there was no checkpoint yet.
    """
    fd = fs.open_read(paths.manifest)
    try:
        return decode_manifest(fs.pread(fd, fs.fstat(fd).size, 0))
    finally:
        fs.close(fd)


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest; raise ManifestDamage, or UnknownVersion for a newer format."""
    tail = _TAIL.fullmatch(data, max(0, len(data) - _TAIL_BYTES))
    if tail is None:
        raise ManifestDamage("it does not end with a checksum")
    body = memoryview(data)[:-_TAIL_BYTES]
    if xxhash.xxh3_64_hexdigest(body).encode() != tail[1]:
        raise ManifestDamage("its checksum does not match")
    try:
        version = _format_decoder.decode(data).format
        if version != MANIFEST_FORMAT:
            raise UnknownVersion(f"manifest format {version}; this program reads format {MANIFEST_FORMAT}")
        manifest = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestDamage(f"it cannot be decoded: {error}") from None
    if manifest.topic_count != len(manifest.topics):
        raise ManifestDamage(f"it holds {len(manifest.topics)} of {manifest.topic_count} topics")
    return manifest
