"""The report about a shard's checkpoints: its snapshots, its manifest and its trash.

The report is based on the files in meta/ and trash/ alone. The log is not read, so a topic is shown as it was
when the newest good snapshot was captured.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from shared.settings.store_url import folder_url
from topicsd.disk.access import os_error_reason
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_trash_name, snapshot_name
from topicsd.engine.checkpoint.manifest import ManifestDamage, read_manifest
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import KeyGeneration, Snapshot, SnapshotDamage, SnapshotTopic
from topicsd.engine.checkpoint.trash import trash_bytes
from topicsd.log.file_header import UnknownVersion
from topicsd.log.files import LogPlace
from topicsd.offline.data_dir import DataDir
from topicsd.offline.table import path_text

_U32_BYTES = 4


class SnapshotReport(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot file. Only a good snapshot has the fields after `damage`."""

    name: str
    number: int
    size_bytes: int
    damage: str = ""
    """Why no start uses the snapshot; empty when it is good."""
    made_ts: int = 0
    replay_from: LogPlace | None = None
    complete_to_ordinal: int = 0
    """The end of the capture: every topic is complete to this ordinal or an earlier one."""
    topic_count: int = 0
    segment_count: int = 0
    idempotency_keys: int = 0


class PublishedReport(msgspec.Struct, frozen=True, kw_only=True):
    """MANIFEST.json, which outside readers use."""

    number: int
    """The number of the snapshot that the manifest was written for."""
    made_ts: int
    topic_count: int
    store_url: str | None
    """The object store of old segments."""


class ReaderReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file in readers/, by which an outside reader keeps the trash."""

    name: str
    held_by: int | None
    """The process that holds the lock; None when the file is left over, or held in another container."""


class CheckpointReport(msgspec.Struct, kw_only=True):
    """The checkpoints of one shard."""

    shard: int
    path: str
    snapshots: list[SnapshotReport] = []
    used: int | None = None
    """The number of the snapshot that a start uses."""
    published: PublishedReport | None = None
    trash_files: int = 0
    trash_bytes: int = 0
    readers: list[ReaderReport] = []
    topics: list[SnapshotTopic] = []
    problems: list[str] = []


def checkpoint_report(data_dir: DataDir, shard: int) -> CheckpointReport:
    fs, paths = data_dir.fs, data_dir.paths(shard)
    report = CheckpointReport(shard=shard, path=path_text(paths.root))
    try:
        _read_snapshots(report, fs, paths, (data_dir.layout.instance_bytes, shard))
        _read_published(report, fs, paths)
        report.trash_files = sum(parse_trash_name(name) is not None for name in names_in(fs, paths.trash))
        report.trash_bytes = trash_bytes(fs, paths)
        report.readers = [
            ReaderReport(name=path_text(name), held_by=fs.lock_owner(os.path.join(paths.readers, name)))
            for name in names_in(fs, paths.readers)
        ]
    except OSError as error:
        where = path_text(str(error.filename or paths.root))
        report.problems.append(f"cannot read {where}: {os_error_reason(error)}")
    return report


def _read_snapshots(report: CheckpointReport, fs: Fs, paths: ShardPaths, identity: tuple[bytes, int]) -> None:
    """Read all snapshots: an older one is used when the newer ones are bad."""
    is_stopped = False
    for number in snapshot_numbers(fs, paths):
        try:
            size = fs.stat(paths.snapshot(number)).size
            snapshot = read_snapshot(fs, paths, number)
        except FileNotFoundError:
            # A running server has dropped it since.
            continue
        except (SnapshotDamage, UnknownVersion) as damage:
            entry = SnapshotReport(
                name=snapshot_name(number), number=number, size_bytes=size, damage=str(damage)
            )
            # A start refuses a snapshot of a newer program instead of using an older snapshot.
            is_stopped = is_stopped or (isinstance(damage, UnknownVersion) and report.used is None)
        else:
            entry = _snapshot_report(snapshot, size, identity)
            if report.used is None and not is_stopped and not entry.damage:
                report.used, report.topics = number, sorted(snapshot.topics, key=lambda one: one.name)
        report.snapshots.append(entry)
        if entry.damage:
            report.problems.append(f"{entry.name} is damaged or from another program: {entry.damage}")


def _snapshot_report(snapshot: Snapshot, size: int, identity: tuple[bytes, int]) -> SnapshotReport:
    head = snapshot.head
    is_ours = (head.instance, head.shard) == identity
    return SnapshotReport(
        name=snapshot_name(head.number),
        number=head.number,
        size_bytes=size,
        damage="" if is_ours else f"it belongs to instance {head.instance.hex()}, shard {head.shard:02d}",
        made_ts=head.created_ms,
        replay_from=head.start,
        complete_to_ordinal=head.end_ordinal,
        topic_count=head.topic_count,
        segment_count=sum(len(topic.segments) for topic in snapshot.topics),
        idempotency_keys=sum(map(_key_count, snapshot.keys)),
    )


def _key_count(keys: KeyGeneration) -> int:
    return len(keys.counts) // _U32_BYTES


def _read_published(report: CheckpointReport, fs: Fs, paths: ShardPaths) -> None:
    try:
        manifest = read_manifest(fs, paths)
    except FileNotFoundError:
        return
    except (ManifestDamage, UnknownVersion) as damage:
        report.problems.append(
            f"MANIFEST.json is unusable: {damage}. Outside readers cannot read this shard until the next "
            "checkpoint; a server starts without it"
        )
        return
    report.published = PublishedReport(
        number=manifest.number,
        made_ts=manifest.ts,
        topic_count=manifest.topic_count,
        store_url=path_text(manifest.store_url or folder_url(manifest.cold_dir or "")) or None,
    )


def document(value: Any) -> Any:
    """Return a report as JSON values with the names of all fields.

    On the disk these structs are arrays without names. Binary fields are replaced by their sizes.
    """
    if isinstance(value, msgspec.Struct):
        return {name: document(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {name: document(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [document(one) for one in value]
    return {"bytes": len(value)} if isinstance(value, bytes) else value
