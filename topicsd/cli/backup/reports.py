"""The JSON documents and the texts of the command `topicsd backup`."""

from __future__ import annotations

import msgspec

from topicsd.backup.check import Pruned
from topicsd.backup.manifest import BackupHead
from topicsd.backup.repository import MARK_HOURS
from topicsd.offline.table import NOTHING, plural, size, table, utc


class ListReport(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    backups: list[dict[str, object]]
    damaged: list[str]


class BackupVerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    is_fine: bool
    backups: list[str]
    problems: list[str]


class RestoredTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    restored_as: str
    head_seq: int


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    backup: dict[str, object]
    topics: list[RestoredTopic] | None = None
    """The topics that were restored under other names; null for a whole restore."""


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    is_dry_run: bool
    backups: list[str]
    objects: int
    bytes: int
    is_create_running: bool


def head_fields(head: BackupHead) -> dict[str, object]:
    return {name: getattr(head, name) for name in head.__struct_fields__}


def create_text(head: BackupHead) -> list[str]:
    pause = "the server was stopped" if head.pause_ms is None else f"writes paused for {head.pause_ms:g} ms"
    return [
        f"created backup {head.id}: {plural(head.shards, 'shard')}, {plural(head.file_count, 'file')}, "
        f"{size(head.file_bytes)}; uploaded {size(head.uploaded_bytes)}; {pause}"
    ]


def list_text(heads: list[BackupHead], damaged: list[str]) -> list[str]:
    rows = [
        (
            head.id,
            utc(head.created_ms),
            head.instance[:8],
            str(head.shards),
            str(head.file_count),
            size(head.file_bytes),
            size(head.uploaded_bytes),
            NOTHING if head.pause_ms is None else f"{head.pause_ms:g} ms",
        )
        for head in heads
    ]
    headers = ("ID", "CREATED", "INSTANCE", ">SHARDS", ">FILES", ">SIZE", ">UPLOADED", ">PAUSE")
    lines = table(headers, rows, indent=0) if rows else ["no backups"]
    return [*lines, *(f"WRONG  {one}" for one in damaged)]


def prune_text(pruned: Pruned, *, is_dry: bool) -> list[str]:
    verb = "would delete" if is_dry else "deleted"
    lines = [f"{verb} backup {one}" for one in pruned.backups]
    if pruned.is_create_running:
        return [
            *lines,
            "a backup is being created, or was interrupted within the last day: no object was deleted",
        ]
    lines.append(f"{verb} {plural(pruned.objects, 'object')}, {size(pruned.bytes)}")
    if pruned.young:
        lines.append(f"kept {plural(pruned.young, 'unnamed object')} younger than {MARK_HOURS} hours")
    return lines
