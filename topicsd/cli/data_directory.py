"""The data directory of a server that starts: checking, locking and opening it.

O1  All checks run before anything is created: a mistyped `--data-dir` creates no file.
O2  The lock is taken before the layout is read: two servers that start at once would both create a layout.
    So is that of the node: a copy of a directory that runs must not serve for a moment.
O3  An interrupted reshard is finished or undone before the layout is used.
O4  The paths that workers read and write are checked here, so that a wrong owner is reported in one sentence
    instead of by a worker that fails repeatedly.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from shared.ipc.placement import PlacementError
from shared.runtime.log_setup import fields
from shared.settings.brokers import chosen_brokers
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from topicsd.catalog.node_lock import lock_node, node_lock_path
from topicsd.disk.access import access_problem, denial_of, os_error_sentence
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs
from topicsd.disk.layout import (
    LAYOUT_NAME,
    RESTORING_NAME,
    Layout,
    LayoutError,
    lock_path,
    make_dirs,
    reshard_command,
    shard_paths,
)
from topicsd.disk.placement_file import read_placement
from topicsd.disk.shard_dirs import settle_directories
from topicsd.engine.shard import open_layout
from topicsd.offline.command_error import EXIT_PROBLEM, CommandError
from topicsd.offline.reshard.swap import JournalDamaged, settle

logger = logging.getLogger("topicsd.serve")

# Names that a directory may hold before it is a data directory: of an interrupted start, or of a new disk.
_OWN_NAMES: Final = frozenset(("LOCK", "shards", "lost+found", f"{LAYOUT_NAME}.tmp", RESTORING_NAME))
_SHOWN_NAMES: Final = 3


def lock_data_dir(fs: Fs, data_dir: str) -> DirLock:
    """Create the data directory if it is missing, and lock it; CommandError when that fails."""
    refuse_unusable_directory(fs, data_dir)
    try:
        make_dirs(fs, data_dir)
    except OSError as error:
        raise CommandError(_create_error(data_dir, error)) from None
    try:
        return DirLock(fs, lock_path(data_dir))
    except DirectoryInUse:
        owner = fs.lock_owner(lock_path(data_dir))
        process = "another process" if owner is None else f"process {owner}"
        raise CommandError(f"{data_dir}: in use by another server, {process}", EXIT_PROBLEM) from None
    except OSError as error:
        raise CommandError(os_error_sentence(error)) from None


def lock_node_of(fs: Fs, settings: Settings, node_id: str) -> DirLock | None:
    """Lock the node of a data directory if its catalog is a file; CommandError when that fails."""
    path = node_lock_path(settings.catalog_url, settings.store_url, settings.data_dir, node_id)
    try:
        return lock_node(fs, path)
    except DirectoryInUse:
        owner = fs.lock_owner(path)
        process = "another process" if owner is None else f"process {owner}"
        raise CommandError(
            f"{settings.data_dir}: {process} runs as the same node {node_id} with the same catalog: a copy "
            "of a data directory, or a restored backup, must not run beside its original; stop that server, "
            "or start this one without TOPICS_STORE_URL and TOPICS_CATALOG_URL",
            EXIT_PROBLEM,
        ) from None
    except OSError as error:
        setting = "TOPICS_CATALOG_URL" if settings.catalog_url else "TOPICS_STORE_URL"
        folder = os.path.dirname(path)
        raise CommandError(
            f"{setting}: the catalog is a file in {folder}, which this server cannot use: "
            f"{os_error_sentence(error)}; create the folder, or correct its owner and mode"
        ) from None


def refuse_unusable_directory(fs: Fs, data_dir: str) -> None:
    """Raise CommandError when the path is no directory, holds other data, or is not writable."""
    try:
        names = fs.list_dir(data_dir)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise CommandError(f"{_existing_part(data_dir)} is a file, not a directory") from None
    except OSError as error:
        raise CommandError(os_error_sentence(error)) from None
    if LAYOUT_NAME not in names:
        foreign = [name for name in names if name not in _OWN_NAMES]
        if foreign:
            shown = ", ".join(foreign[:_SHOWN_NAMES]) + (", ..." if len(foreign) > _SHOWN_NAMES else "")
            raise CommandError(
                f"{data_dir} is not empty and not a data directory: it holds {shown} and no {LAYOUT_NAME}; "
                f"use an empty directory, for example --data-dir {os.path.join(data_dir, 'topics-data')}"
            )
    problem = access_problem(data_dir)
    if problem is not None:
        raise CommandError(problem)


def open_data_layout(fs: Fs, settings: Settings, sources: dict[str, str] | None = None) -> Layout:
    """Read the layout, or create one; `sources` names the origin of each setting."""
    data_dir = settings.data_dir
    try:
        # Both outcomes are a few renames, and the operator gets a server at any hour.
        if done := settle(fs, data_dir):
            logger.warning("data directory: %s", done, extra=fields(data_dir=data_dir))
        layout = settle_directories(fs, data_dir, open_layout(fs, data_dir, settings.shards))
        read_placement(fs, data_dir, layout.shards)
    except JournalDamaged as error:
        raise CommandError(str(error), EXIT_PROBLEM) from None
    except (LayoutError, PlacementError) as error:
        advice = "" if "run " in str(error) else f"; run `topicsd doctor {data_dir}`"
        raise CommandError(f"{error}{advice}", EXIT_PROBLEM) from None
    except OSError as error:
        raise CommandError(os_error_sentence(error)) from None
    for shard in range(layout.shards):
        refuse_unusable_shard(fs, data_dir, shard)
    if not layout.shards:
        refuse_stateless(settings)
    elif settings.shards not in (AUTO, layout.shards):
        setting = (sources or {}).get("shards", "TOPICS_SHARDS")
        setting = (
            f"{setting} {settings.shards}" if setting.startswith("--") else f"{setting}={settings.shards}"
        )
        logger.warning(
            "%s ignored: this directory has %d shards; to change the number, POST /v0/shards to the running "
            "server, or stop it and run: %s --shards %d",
            setting,
            layout.shards,
            reshard_command(data_dir),
            settings.shards,
            extra=fields(data_dir=data_dir),
        )
    return layout


def refuse_stateless(settings: Settings) -> None:
    """Raise CommandError for settings that the directory of a node without shards cannot have."""
    if settings.shards not in (AUTO, 0):
        raise CommandError(
            f"{settings.data_dir}: belongs to a stateless node, which has no shards; use another data "
            "directory"
        )
    if not chosen_brokers(settings):
        raise CommandError(
            f"{settings.data_dir}: belongs to a stateless node, which needs brokers; set TOPICS_STORE_URL, "
            "or use another data directory"
        )


def refuse_unusable_shard(fs: Fs, data_dir: str, shard: int) -> None:
    """Raise CommandError for the first path of a shard that its worker could not use.

    Missing paths are left to the worker.
    """
    paths = shard_paths(data_dir, shard)
    directories = (paths.root, paths.wal, paths.meta, paths.readers, paths.topics, paths.quarantine)
    for path in (*directories, paths.trash, paths.lock):
        problem = access_problem(path) if os.path.lexists(path) else None
        if problem is not None:
            raise CommandError(problem)
    for directory in (paths.wal, paths.meta):
        for name in fs.list_dir(directory) if os.path.isdir(directory) else ():
            problem = access_problem(os.path.join(directory, name))
            if problem is not None:
                raise CommandError(problem)


def _existing_part(path: str) -> str:
    """Return the part of a path that exists: a file where a directory is needed."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _create_error(data_dir: str, error: OSError) -> str:
    parent = os.path.dirname(os.path.abspath(data_dir))
    if isinstance(error, NotADirectoryError):
        return f"{_existing_part(data_dir)} is a file, not a directory"
    reason = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        path = data_dir if error.filename is None else os.fsdecode(error.filename)
        return f"cannot create {data_dir}: {reason}: {denial_of(path)}"
    if error.errno == errno.ENOENT:
        return f"cannot create {data_dir}: {reason}: the file system of {parent} rejects new directories"
    return f"cannot create {data_dir}: {reason}"
