"""`topicsd store vacuum`: find the objects that nothing names, and delete them with `--apply`.

With a data directory, those of its exports; with a catalog, those of shared topics. Nothing is deleted
without `--apply`, and without a catalog that names the other nodes of the store, or the statement that there
are none. A server may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import threading
from typing import Final
from urllib.parse import quote

from shared.runtime.clock import Clock, SystemClock
from shared.runtime.retries import Retries
from shared.settings.catalog_url import SQLITE, refuse_catalog_url
from shared.settings.store_url import store_folder
from topicsd.broker.catalog_of_store import has_objects
from topicsd.catalog.catalog import Catalog, CatalogExtraMissing, CatalogRefused, CatalogUnavailable
from topicsd.catalog.open_catalog import FILE_NAME, catalog_directory, is_shared_catalog, open_catalog
from topicsd.cli.command import write_json
from topicsd.cli.compactor.shared_places import CATALOG_VARIABLE, check_catalog_file, urls_of
from topicsd.cli.store.shared_vacuum import vacuum_shared
from topicsd.cli.store.vacuum_text import SharedReport, VacuumReport, shared_text, vacuum_report, vacuum_text
from topicsd.disk.fs import RealFs
from topicsd.offline.command_error import EXIT_OK, CommandError
from topicsd.offline.data_dir import DataDir, add_store, open_data_dir
from topicsd.offline.loaded_shard import objects_of, store_url_of_shard
from topicsd.offline.vacuum import (
    GRACE_HOURS,
    GRACE_HOURS_MIN,
    HOUR_MS,
    NamedObjects,
    add_catalog,
    delete_objects,
    find_leftovers,
    read_named,
)
from topicsd.store.file_objects import FileObjects
from topicsd.store.object_store import StoreRefused, StoreUnavailable

SUMMARY: Final = "find objects that nothing names, and delete them with --apply"
DESCRIPTION: Final = f"""\
Find the objects in the store of a data directory that nothing names, as a crash during an export leaves them,
and temporary files of killed writers. Nothing is deleted without --apply. A server may run meanwhile.

Only objects of topics of this directory count, and with a catalog only of topics that this node owns. They
must be older than the grace, by the times of the store, before the last checkpoint of each shard.

The catalog is that of --catalog-url, or of TOPICS_CATALOG_URL, which hides a password; or {FILE_NAME} in the
folder of the store or in the data directory.

With a catalog also the objects of shared topics count: blobs and compacted objects that no extent names.
Without DIR only these, in the store of --store-url or TOPICS_STORE_URL.
"""
CATALOG_SECONDS: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", help="the data directory; without one only shared topics"
    )
    parser.add_argument("--shard", type=int, metavar="N", help=argparse.SUPPRESS)
    add_store(parser)
    parser.add_argument("--catalog-url", metavar="URL", default="", help=f"default: {CATALOG_VARIABLE}")
    parser.add_argument(
        "--grace-hours",
        metavar="N",
        type=int,
        default=GRACE_HOURS,
        help=f"keep younger objects (default: {GRACE_HOURS})",
    )
    parser.add_argument(
        "--sole-directory",
        action="store_true",
        help="state that no other data directory, and no copy of this one, uses the store",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--apply", action="store_true", help="delete what was found")
    group.add_argument("--dry-run", action="store_true", help="delete nothing, as without --apply")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    clock = SystemClock()
    if args.grace_hours < GRACE_HOURS_MIN:
        raise CommandError(f"--grace-hours: must be at least {GRACE_HOURS_MIN}, got {args.grace_hours}")
    report = vacuum(args, clock) if args.directory else vacuum_without_directory(args, clock)
    if args.json:
        write_json(report)
    else:
        print(*(vacuum_text(report) if isinstance(report, VacuumReport) else shared_text(report)), sep="\n")
    return EXIT_OK


def vacuum_without_directory(args: argparse.Namespace, clock: Clock) -> SharedReport:
    """Vacuum the objects of shared topics alone."""
    if args.cold_dir:
        raise CommandError("--cold-dir: needs DIR; give --store-url")
    store_url, catalog_url = urls_of(args)
    grace_ms = args.grace_hours * HOUR_MS
    shared, store, catalog = vacuum_shared(store_url, catalog_url, clock, grace_ms, args.apply)
    return SharedReport(store=store, catalog=catalog, shared=shared, is_deleted=args.apply)


def refuse_uncertain(is_applied: bool, is_certain: bool) -> None:
    if is_applied and not is_certain:
        raise CommandError(
            "--apply: no catalog names the other nodes of this store; give --catalog-url, "
            "or --sole-directory when no other data directory uses the store"
        )


def vacuum(args: argparse.Namespace, clock: Clock) -> VacuumReport:
    if args.shard is not None:
        raise CommandError("--shard: must not be given: all shards use one store")
    data_dir = open_data_dir(args)
    store_url = store_url_of(data_dir)
    named = read_named(data_dir)
    catalog_url = catalog_url_of(
        args.catalog_url or os.environ.get(CATALOG_VARIABLE, ""), store_url, data_dir
    )
    shown_catalog = ask_catalog(named, catalog_url, store_url, data_dir, clock)
    is_certain = args.sole_directory or is_shared_catalog(catalog_url, store_url)
    refuse_uncertain(args.apply, is_certain)
    objects = objects_of(store_url, RealFs())
    assert objects is not None
    store, folder = objects.store, store_folder(store_url)
    files = FileObjects(RealFs(), folder) if folder else None
    try:
        grace_ms = args.grace_hours * HOUR_MS
        leftovers = find_leftovers(store, files, named, clock.now_ms(), grace_ms, args.sole_directory)
        if args.apply:
            delete_objects(store, [*leftovers.temporary, *leftovers.orphans])
        has_shared = has_objects(store)
    except (StoreUnavailable, StoreRefused) as error:
        raise CommandError(f"object store: {error}") from None
    finally:
        objects.close()
    shared = None
    if has_shared and catalog_url:
        catalog_url = sqlite_file_url(catalog_url, store_url, data_dir)
        shared, _, _ = vacuum_shared(store_url, catalog_url, clock, grace_ms, args.apply)
    return vacuum_report(
        data_dir.path, store.url, shown_catalog, leftovers, shared, has_shared, is_certain, args.apply
    )


def sqlite_file_url(catalog_url: str, store_url: str, data_dir: DataDir) -> str:
    """Return the URL with the path of a SQLite file that `sqlite:` leaves open."""
    if catalog_url != SQLITE:
        return catalog_url
    path = os.path.join(catalog_directory(store_url, data_dir.path), FILE_NAME)
    return f"{SQLITE}//{quote(os.path.abspath(path))}"


def store_url_of(data_dir: DataDir) -> str:
    """Return the URL of the store that all shards use; CommandError when there is none, or no single one."""
    urls = {store_url_of_shard(data_dir._replace(store_url=""), shard) for shard in data_dir.shards} - {""}
    given = {data_dir.store_url} - {""}
    if given and urls - given:
        raise CommandError(f"--store-url: must be {min(urls - given)}, which the manifest names")
    if len(urls | given) > 1:
        raise CommandError(f"{data_dir.path}: its shards name more than one object store")
    if not urls | given:
        raise CommandError(f"{data_dir.path}: its manifests name no object store; give --store-url")
    return min(urls | given)


def catalog_url_of(url: str, store_url: str, data_dir: DataDir) -> str:
    """Return the URL of the catalog; without one, of the file that exists, or an empty text."""
    if url and (problem := refuse_catalog_url(url)) is not None:
        raise CommandError(f"--catalog-url: {problem}")
    if url and url != SQLITE:
        return url
    directory = catalog_directory(store_url, data_dir.path)
    return SQLITE if os.path.exists(os.path.join(directory, FILE_NAME)) else ""


def ask_catalog(named: NamedObjects, url: str, store_url: str, data_dir: DataDir, clock: Clock) -> str | None:
    """Add what the catalog names; return its URL without credentials, or None without a catalog."""
    if not url:
        if named.has_catalog:
            raise CommandError(f"the topics of {data_dir.path} are in a catalog; name it with --catalog-url")
        return None
    retries = Retries(clock.monotonic, threading.Event().wait, CATALOG_SECONDS)
    try:
        directory = catalog_directory(store_url, data_dir.path)
        check_catalog_file(url, directory)
        catalog: Catalog = open_catalog(url, directory, retries)
        try:
            add_catalog(named, catalog, data_dir.layout.instance)
            return catalog.url
        finally:
            catalog.close()
    except (CatalogRefused, CatalogUnavailable, CatalogExtraMissing) as error:
        raise CommandError(f"catalog: {error}") from None
