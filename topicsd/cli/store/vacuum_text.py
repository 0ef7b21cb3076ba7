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


class SharedVacuum(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of shared topics."""

    objects: int
    young: int
    orphans: int
    """Those that no extent names, and that are older than the grace."""
    temporary: int
    """Temporary files of killed writers."""
    bytes: int
    examples: list[LeftObject]


class SharedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report without a data directory."""

    store: str
    catalog: str
    shared: SharedVacuum
    is_deleted: bool


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
    shared: SharedVacuum | None
    """The objects of shared topics; None without any, or without a catalog."""
    has_shared: bool
    is_certain: bool
    """Whether the catalog, or the caller, rules out that another node names the orphans."""
    is_deleted: bool


def vacuum_report(
    directory: str,
    store: str,
    catalog: str | None,
    leftovers: Leftovers,
    shared: SharedVacuum | None,
    has_shared: bool,
    is_certain: bool,
    is_deleted: bool,
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
        shared=shared,
        has_shared=has_shared,
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
    if report.shared is not None:
        lines += _shared_lines(report.shared)
    elif report.has_shared:
        lines.append("objects of shared topics were not looked at: they need --catalog-url")
    count = len(rows) + (0 if report.shared is None else report.shared.orphans + report.shared.temporary)
    byte_count = report.bytes + (0 if report.shared is None else report.shared.bytes)
    return [*lines, _total(count, byte_count, report.is_certain, report.is_deleted)]


def shared_text(report: SharedReport) -> list[str]:
    shared = report.shared
    # The store names its catalog, and no other one may vacuum it.
    total = _total(shared.orphans + shared.temporary, shared.bytes, True, report.is_deleted)
    return [f"{report.store}, {report.catalog}", *_shared_lines(shared), total]


def _shared_lines(shared: SharedVacuum) -> list[str]:
    rows = [(utc(one.modified_ms), size(one.size), path_text(one.key)) for one in shared.examples]
    named = shared.objects - shared.young - shared.orphans
    lines = [*table(("written", "size", "object"), rows)] if rows else []
    others = shared.orphans + shared.temporary - len(rows)
    if others:
        lines.append(f"and {plural(others, 'other object')} of shared topics")
    kept = [("shared", _kept(named, "named by shared topics"))]
    if shared.young:
        kept.append(("shared", _kept(shared.young, "younger than the grace")))
    return [*lines, *facts(kept)]


def _total(count: int, byte_count: int, is_certain: bool, is_deleted: bool) -> str:
    total = f"{plural(count, 'object')}, {size(byte_count)}"
    if is_deleted:
        return f"deleted {total}"
    if not count:
        return "nothing to delete"
    needs = "--apply" if is_certain else "--apply, and --catalog-url or --sole-directory"
    return f"{total} can be deleted with {needs}"


def _kept(count: int, why: str) -> str:
    kept = f"{plural(count, 'object')} kept"
    return f"{kept}: {why}" if why else kept


def _left(objects: Iterable[ObjectInfo]) -> list[LeftObject]:
    return [LeftObject(key=one.key, size=one.size, modified_ms=one.modified_ms) for one in objects]
