"""The objects of shared topics in `topicsd store vacuum`: those that no extent of the catalog names."""

from __future__ import annotations

from shared.runtime.clock import Clock
from shared.settings.store_url import store_folder
from topicsd.broker.catalog_of_store import FOLDERS
from topicsd.broker.repeats import Repeats
from topicsd.broker.upkeep.blob_vacuum import EXAMPLES_MAX, BlobVacuum
from topicsd.cli.compactor.once import run_steps
from topicsd.cli.compactor.shared_places import shared_places
from topicsd.cli.store.vacuum_text import LeftObject, SharedVacuum
from topicsd.disk.fs import RealFs
from topicsd.store.file_objects import FileObjects
from topicsd.store.object_store import ObjectInfo


def vacuum_shared(
    store_url: str, catalog_url: str, clock: Clock, grace_ms: int, is_applied: bool
) -> tuple[SharedVacuum, str, str]:
    """Count the orphans, and delete them when `is_applied`; return also the URLs of store and catalog."""
    repeats = Repeats(clock)
    with shared_places(store_url, catalog_url, clock, repeats) as places:
        report = run_steps(BlobVacuum(*places, repeats, grace_ms).run(is_dry=not is_applied))
        temporary = _temporary_files(store_url, clock.now_ms() - grace_ms)
        if is_applied:
            for one in temporary:
                places.store.delete(one.key)
        examples = [*temporary, *report.examples][:EXAMPLES_MAX]
        vacuum = SharedVacuum(
            objects=report.objects,
            young=report.young,
            orphans=report.orphans,
            temporary=len(temporary),
            bytes=report.byte_count + sum(one.size for one in temporary),
            examples=[
                LeftObject(key=one.key, size=one.size, modified_ms=one.modified_ms) for one in examples
            ],
        )
        return vacuum, places.store.url, places.catalog.url


def _temporary_files(store_url: str, before_ms: int) -> list[ObjectInfo]:
    """Return what killed writers left in a store in a folder."""
    folder = store_folder(store_url)
    files = FileObjects(RealFs(), folder) if folder else None
    infos = [] if files is None else [one for prefix in FOLDERS for one in files.temporary_files(prefix)]
    return [one for one in infos if one.modified_ms < before_ms]
