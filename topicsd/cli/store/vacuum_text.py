"""The report of `topicsd store vacuum`, as a document and as text."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from topicsd.offline.table import facts, path_text, plural, size, table, utc
from topicsd.offline.vacuum import Leftovers
from topicsd.store.object_store import ObjectInfo


class LeftObject(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size: int
    modified_ms: int


class VacuumReport(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    store: str
    catalog: str | None
    orphans: list[LeftObject]
    temporary: list[LeftObject]
    bytes: int
    named: int
    young: int
    unknown: int
    elsewhere: int
    is_certain: bool
    """Whether the catalog, or the caller, rules out that another node names the orphans."""
    is_deleted: bool


def vacuum_report(
    directory: str, store: str, catalog: str | None, leftovers: Leftovers, is_certain: bool, is_deleted: bool
) -> VacuumReport:
    return VacuumReport(
        directory=path_text(directory),
        store=store,
        catalog=catalog,
        orphans=_left(leftovers.orphans),
        temporary=_left(leftovers.temporary),
        bytes=sum(one.size for one in (*leftovers.orphans, *leftovers.temporary)),
        named=leftovers.named_count,
        young=leftovers.young_count,
        unknown=leftovers.unknown_count,
        elsewhere=leftovers.elsewhere_count,
        is_certain=is_certain,
        is_deleted=is_deleted,
    )


def vacuum_text(report: VacuumReport) -> list[str]:
    rows = [
        (utc(one.modified_ms), size(one.size), path_text(one.key))
        for one in (*report.orphans, *report.temporary)
    ]
    kept = [
        ("named", report.named, ""),
        ("young", report.young, "younger than the grace before the last checkpoint"),
        ("unknown", report.unknown, "of topics that this directory does not have"),
        ("elsewhere", report.elsewhere, "of topics that this node does not own"),
    ]
    lines = [f"{report.store}, {report.catalog or 'no catalog'}"]
    lines += table(("written", "size", "object"), rows) if rows else []
    lines += facts((name, _kept(count, why)) for name, count, why in kept if count or name == "named")
    total = f"{plural(len(rows), 'object')}, {size(report.bytes)}"
    if report.is_deleted:
        return [*lines, f"deleted {total}"]
    if not rows:
        return [*lines, "nothing to delete"]
    needs = "--apply" if report.is_certain else "--apply, and --catalog-url or --sole-directory"
    return [*lines, f"{total} can be deleted with {needs}"]


def _kept(count: int, why: str) -> str:
    kept = f"{plural(count, 'object')} kept"
    return f"{kept}: {why}" if why else kept


def _left(objects: Iterable[ObjectInfo]) -> list[LeftObject]:
    return [LeftObject(key=one.key, size=one.size, modified_ms=one.modified_ms) for one in objects]
