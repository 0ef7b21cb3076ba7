"""The check of backups, and the removal of old ones with the objects that no manifest names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

import xxhash

from shared.runtime.clock import Clock
from topicsd.backup.manifest import BLOBS, BackupManifest, Reference, StoredObject, manifest_key
from topicsd.backup.repository import CREATING, MARK_HOURS, PRUNING, BackupError, Repository
from topicsd.backup.upload import THREADS
from topicsd.disk.fs import RealFs
from topicsd.segment.referred_stems import all_references
from topicsd.store.create_object import repeat_request
from topicsd.store.open_store import open_store

IDS_SHOWN: Final = 3
PRUNE_SECONDS_MAX: Final = (MARK_HOURS - 1) * 3600


def check_objects(
    repository: Repository,
    manifests: Iterable[BackupManifest],
    is_quick: bool,
    on_bytes: Callable[[int], object],
) -> list[str]:
    """Check each object that the manifests name, once; return the problems, and the backups they affect.

    A quick check is of existence and size, another one reads every byte.
    """
    needed_by: dict[StoredObject, list[str]] = {}
    for manifest in manifests:
        for one in set(manifest.objects):
            needed_by.setdefault(one, []).append(manifest.head.id)

    def check(stored: StoredObject) -> str:
        problem = find_problem(stored)
        return f"{problem}; needed by {_backups(needed_by[stored])}" if problem else ""

    def find_problem(stored: StoredObject) -> str:
        try:
            info = repeat_request(lambda: repository.store.info(stored.key), repository.retries())
            if info.size != stored.size:
                return f"{stored.key}: has {info.size} of {stored.size} bytes"
            if not is_quick:
                data = repository.read_part(stored.key, 0, stored.size)
                if xxhash.xxh3_128_digest(data) != stored.digest:
                    return f"{stored.key}: damaged: its content does not match its name"
        except FileNotFoundError:
            return f"{stored.key}: missing"
        on_bytes(stored.size)
        return ""

    with ThreadPoolExecutor(THREADS) as pool:
        in_order = sorted(needed_by, key=lambda stored: stored.key)
        return [problem for problem in pool.map(check, in_order) if problem]


def _backups(ids: list[str]) -> str:
    """Return the ids as text; no more than a line holds.

    >>> _backups(["a"]), _backups(list("abcde"))
    ('backup a', 'backups a, b, c and 2 more')
    """
    named, more = ids[:IDS_SHOWN], len(ids) - IDS_SHOWN
    return f"backup{'s' * (len(ids) > 1)} {', '.join(named)}{f' and {more} more' if more > 0 else ''}"


def check_files(manifest: BackupManifest) -> list[str]:
    """Return the files of a manifest that do not fit their objects."""
    problems = []
    for shard in manifest.shards:
        for file in shard.files:
            sizes = [manifest.objects[index].size for index in file.objects]
            fits = (
                file.offset + file.stored_bytes <= sum(sizes)
                if file.digest
                else file.stored_bytes == sum(sizes)
            )
            if not fits or file.size < file.stored_bytes:
                problems.append(f"{manifest_key(manifest.head.id)}: {file.path} does not fit its objects")
    return problems


def check_references(manifest: BackupManifest, clock: Clock) -> list[str]:
    """Return the objects of the store of segments that are missing, or have another size.

    Their bytes are not read: `topicsd verify` of a restored directory does that.
    """
    references = [one for shard in manifest.shards for one in shard.references]
    if not references:
        return []
    repository = Repository(open_store(manifest.store_url, RealFs()), clock)

    def check(reference: Reference) -> str:
        place = f"{manifest.store_url}/{reference.key}"
        try:
            info = repeat_request(partial(repository.store.info, reference.key), repository.retries())
        except FileNotFoundError:
            return f"{place}: missing, and backup {manifest.head.id} refers to it"
        return "" if info.size == reference.size else f"{place}: has {info.size} of {reference.size} bytes"

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return [problem for problem in pool.map(check, references) if problem]
    finally:
        repository.store.close()


def _drop_references(repository: Repository, url: str) -> None:
    """Delete the lists of backups of this repository that do not exist (B2)."""
    with closing(open_store(url, RealFs())) as store:
        lists = repeat_request(partial(all_references, store), repository.retries())
        # After the lists: a backup that is created meanwhile has its list first.
        kept = {*repository.ids()}
        for one in lists:
            if one.repository == repository.store.url and one.backup_id not in kept:
                repeat_request(partial(store.delete, one.key), repository.retries())


class Pruned(NamedTuple):
    backups: list[str]
    objects: int
    bytes: int
    is_create_running: bool
    """Whether objects were kept because a backup is being created."""
    young: int = 0
    """Unnamed objects that were kept because they are younger than MARK_HOURS."""


def prune(repository: Repository, keep: int, *, is_dry: bool) -> Pruned:
    """Delete all but the newest `keep` backups of each data directory, and then unnamed objects.

    Manifests go first: an object is deleted only when no manifest names it. Objects that are younger than
    MARK_HOURS stay, so that an interrupted backup finds what it stored. A damaged manifest stops the command,
    since the objects that it names are unknown. Then the lists of what the deleted backups, and those that
    were never finished, refer to in the stores of their servers.
    """
    started = repository.clock.monotonic()
    with repository.marked(PRUNING, repository.new_id()) as now_ms:
        creating = repository.marks(CREATING, now_ms)
        kept: dict[str, int] = {}
        named: set[str] = set()
        removed = []
        server_stores: dict[str, None] = {}
        for listed in repository.backups():
            if listed.manifest is None:
                raise BackupError(
                    f"{manifest_key(listed.id)}: {listed.problem}: delete this object, then prune again"
                )
            if listed.manifest.store_url:
                server_stores[listed.manifest.store_url] = None
            instance = listed.manifest.head.instance
            kept[instance] = kept.get(instance, 0) + 1
            if kept[instance] > keep:
                removed.append(listed.id)
            else:
                named |= {one.key for one in listed.manifest.objects}
        for backup_id in () if is_dry else removed:
            delete = partial(repository.store.delete, manifest_key(backup_id))
            repeat_request(delete, repository.retries())
        if not is_dry and not creating:
            for url in server_stores:
                _drop_references(repository, url)
        if creating:
            return Pruned(removed, 0, 0, True)
        count = size = young = 0
        for info in repository.store.list(BLOBS):
            if info.key in named:
                continue
            if info.modified_ms > now_ms - MARK_HOURS * 3_600_000:
                young += 1
                continue
            if repository.clock.monotonic() - started > PRUNE_SECONDS_MAX:
                break
            if not is_dry:
                repository.store.delete(info.key)
            count += 1
            size += info.size
        return Pruned(removed, count, size, False, young)
