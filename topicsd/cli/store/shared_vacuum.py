"""The objects of shared topics in `topicsd store vacuum`: those that no extent of the catalog names."""

from __future__ import annotations

from shared.runtime.clock import Clock
from topicsd.broker.upkeep.blob_vacuum import FOLDERS, BlobVacuum
from topicsd.cli.compactor.once import run_steps
from topicsd.cli.compactor.shared_places import Repeats, shared_places
from topicsd.cli.store.vacuum_text import LeftObject, SharedVacuum
from topicsd.store.object_store import ObjectStore


def vacuum_shared(
    store_url: str, catalog_url: str, clock: Clock, grace_ms: int, is_applied: bool
) -> tuple[SharedVacuum, str, str]:
    """Count the orphans, and delete them when `is_applied`; return also the URLs of store and catalog."""
    repeats = Repeats(clock)
    with shared_places(store_url, catalog_url, clock, repeats) as places:
        report = run_steps(BlobVacuum(*places, repeats, grace_ms).run(is_dry=not is_applied))
        vacuum = SharedVacuum(
            objects=report.objects,
            young=report.young,
            orphans=report.orphans,
            bytes=report.byte_count,
            examples=[
                LeftObject(key=one.key, size=one.size, modified_ms=one.modified_ms) for one in report.examples
            ],
        )
        return vacuum, places.store.url, places.catalog.url


def has_shared_objects(store: ObjectStore) -> bool:
    return any(next(iter(store.list(folder)), None) is not None for folder in FOLDERS)
