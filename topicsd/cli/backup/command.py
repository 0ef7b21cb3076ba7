"""`topicsd backup`: the arguments of its actions, and what each does with `topicsd/backup/`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shared.ipc.placement import PlacementError
from shared.runtime.clock import SystemClock
from shared.settings.store_url import store_folder
from shared.text.quantity import parse_bytes
from topicsd.backup.check import check_files, check_objects, check_references, prune
from topicsd.backup.create import CreateOptions, Creator
from topicsd.backup.manifest import BackupManifest, ManifestDamaged
from topicsd.backup.repository import BackupError, Repository
from topicsd.backup.restore import Restorer
from topicsd.backup.server_call import Source
from topicsd.backup.topic_copy import TopicCopier
from topicsd.cli.backup import reports
from topicsd.cli.backup.transfer_progress import RetryLines, TransferProgress
from topicsd.cli.command import Command, CommandAction, write_json
from topicsd.cli.outside_paths import is_within
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import LayoutError
from topicsd.disk.placement_file import read_placement
from topicsd.offline.command_error import EXIT_ERROR, EXIT_OK, EXIT_PROBLEM, CommandError
from topicsd.offline.data_dir import DataDir, add_store, layout_of, store_url_of_args
from topicsd.offline.table import path_text, plural
from topicsd.store.open_store import open_store

KEY_VARIABLE: Final = "TOPICS_API_KEY"
EXIT_INTERRUPTED: Final = 130

DESCRIPTION = """\
Back up a data directory to a folder or an object store, while its server runs or is stopped, and restore it.

A backup is one point in time over all shards. It uploads only what the store does not have yet, and an
interrupted backup continues where it ended when it is created again.

  topicsd backup create DIR --to URL [--url URL] [--store-url URL] [--reference-store] [--limit-rate SIZE]
                        [--full] [--json]
  topicsd backup list URL [--json]
  topicsd backup verify URL [ID] [--quick] [--json]
  topicsd backup restore URL [ID] DIR [--json]
  topicsd backup restore URL [ID] DIR --topic NAME=NEW ... [--url URL] [--json]
  topicsd backup prune URL --keep N [--dry-run] [--json]

With --topic, DIR is the data directory of a running server, and only these topics are restored into it, under
other names.

A URL is file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; a path is a folder.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, action in ACTIONS.items():
        added = actions.add_parser(name, **action.parser_arguments())
        added.set_defaults(act=action.run, parser=added)
        action.add_arguments(added)
        added.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    try:
        code: int = args.act(args)
    except (BackupError, ManifestDamaged) as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        raise CommandError("stopped; run the command again to continue", EXIT_INTERRUPTED) from None
    return code


def _used_url(url: str) -> str:
    return url if ":" in url else f"file://{os.path.abspath(url)}"


def _refuse_own_directory(to: str, directory: str) -> None:
    """Raise CommandError when the backup would be in the data directory."""
    folder = store_folder(_used_url(to))
    if folder and is_within(os.path.realpath(folder), os.path.realpath(directory)):
        raise CommandError(
            f"--to: {folder} is in the data directory, and is lost with it; name a folder outside of it"
        )


@contextmanager
def repository_of(url: str) -> Iterator[Repository]:
    """Open the store of a URL or of a folder."""
    used = _used_url(url)
    from topicsd.store.remote_objects import ExtraMissing

    try:
        folder = store_folder(used)
        if folder and not os.path.isdir(folder):
            raise CommandError(f"{folder}: no such directory; create it, or mount its disk")
        store = open_store(used, RealFs())
    except ExtraMissing as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{url}: {error}") from None
    try:
        yield Repository(store, SystemClock(), RetryLines(SystemClock()).show)
    finally:
        store.close()


def no_backup(repository: Repository) -> BackupError:
    return BackupError(f"{repository.store.url} has no backup")


def chosen(repository: Repository, backup_id: str | None) -> BackupManifest:
    """Return the named backup, or the newest one."""
    ids = repository.ids()
    if not ids:
        raise no_backup(repository)
    if backup_id is not None and backup_id not in ids:
        raise BackupError(f"{backup_id}: no such backup; `topicsd backup list` shows them")
    used = ids[-1] if backup_id is None else backup_id
    try:
        return repository.read(used)
    except ManifestDamaged as damage:
        raise BackupError(f"backup {used} is damaged: {damage}") from None


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the data directory")
    parser.add_argument("--to", metavar="URL", required=True, help="the store of the backups, or a folder")
    _add_server(parser)
    add_store(parser)
    parser.add_argument(
        "--reference-store",
        action="store_true",
        help="name the segments of the object store instead of copying them; a restore then needs that store",
    )
    parser.add_argument(
        "--limit-rate",
        metavar="SIZE",
        default="0",
        help='bytes a second, such as "50 MiB" (default: 0, no limit)',
    )
    parser.add_argument("--full", action="store_true", help="read every file, and look up every object")


def _add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="", help=f"the server, when it runs as another user; its key is in {KEY_VARIABLE}"
    )


def _source(args: argparse.Namespace) -> Source:
    return Source(args.url, os.environ.get(KEY_VARIABLE, ""))


def _data_dir(fs: Fs, directory: str, store_url: str = "") -> DataDir:
    try:
        layout = layout_of(fs, directory)
        placement = read_placement(fs, directory, layout.shards)
    except (LayoutError, PlacementError) as error:
        raise CommandError(str(error), EXIT_PROBLEM) from None
    return DataDir(fs, directory, layout, placement, list(range(layout.shards)), store_url)


def _create(args: argparse.Namespace) -> int:
    fs = RealFs()
    try:
        rate = parse_bytes(args.limit_rate)
    except ValueError as error:
        raise CommandError(f"--limit-rate: {error}") from None
    data_dir = _data_dir(fs, args.directory, store_url_of_args(args))
    _refuse_own_directory(args.to, args.directory)
    progress = TransferProgress("backup", SystemClock())
    options = CreateOptions(_source(args), rate, args.full, args.reference_store)
    with repository_of(args.to) as repository:
        try:
            head = Creator(fs, data_dir, repository, options, progress.add).run()
        finally:
            progress.clear()
    if args.json:
        write_json(reports.head_fields(head))
    else:
        print(*reports.create_text(head), sep="\n")
    return EXIT_OK


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="URL", help="the store of the backups, or a folder")


def _list(args: argparse.Namespace) -> int:
    with repository_of(args.store) as repository:
        listed = list(repository.backups())
        url = repository.store.url
    heads = [one.manifest.head for one in listed if one.manifest is not None]
    damaged = [f"backup {one.id}: {one.problem}" for one in listed if one.manifest is None]
    if args.json:
        write_json(
            reports.ListReport(url=url, backups=[reports.head_fields(one) for one in heads], damaged=damaged)
        )
    else:
        print(*reports.list_text(heads, damaged), sep="\n")
    return EXIT_PROBLEM if damaged else EXIT_OK


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_url(parser)
    parser.add_argument("id", metavar="ID", nargs="?", help="the backup (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="check only that every object exists, and its size"
    )


def _verify(args: argparse.Namespace) -> int:
    with repository_of(args.store) as repository:
        problems: list[str] = []
        if args.id is None:
            listed = list(repository.backups())
            manifests = [one.manifest for one in listed if one.manifest is not None]
            problems += [f"backup {one.id}: {one.problem}" for one in listed if one.manifest is None]
            if not listed:
                raise no_backup(repository)
        else:
            manifests = [chosen(repository, args.id)]
        for manifest in manifests:
            problems += check_files(manifest)
            problems += check_references(manifest, repository.clock)
        total = sum({one.key: one.size for manifest in manifests for one in manifest.objects}.values())
        progress = TransferProgress("verify", SystemClock(), total)
        try:
            problems += check_objects(repository, manifests, args.quick, progress.add)
        finally:
            progress.clear()
        url = repository.store.url
    ids = [manifest.head.id for manifest in manifests]
    if args.json:
        write_json(reports.BackupVerifyReport(url=url, is_fine=not problems, backups=ids, problems=problems))
    else:
        result = f"{plural(len(problems), 'problem')} found" if problems else "all is well"
        print(*(f"WRONG  {one}" for one in problems), f"{result}: {plural(len(ids), 'backup')}", sep="\n")
    return EXIT_PROBLEM if problems else EXIT_OK


def _add_restore(parser: argparse.ArgumentParser) -> None:
    _add_url(parser)
    parser.add_argument("id", metavar="ID", nargs="?", help="the backup (default: the newest)")
    parser.add_argument("directory", metavar="DIR", help="an empty or new directory")
    parser.add_argument(
        "--topic",
        metavar="NAME=NEW",
        action="append",
        default=[],
        help="restore this topic under a new name into the running server of DIR; may be repeated",
    )
    _add_server(parser)


def _restore(args: argparse.Namespace) -> int:
    with repository_of(args.store) as repository:
        manifest = chosen(repository, args.id)
        if args.topic:
            return _restore_topics(args, repository, manifest)
        if args.url:
            raise CommandError("--url: only with --topic")
        progress = TransferProgress("restore", SystemClock(), manifest.head.file_bytes)
        try:
            Restorer(RealFs(), repository, manifest, args.directory, progress.add).run()
        finally:
            progress.clear()
    if args.json:
        fields = reports.head_fields(manifest.head)
        write_json(reports.RestoreReport(directory=path_text(args.directory), backup=fields))
    else:
        print(f"restored backup {manifest.head.id} to {path_text(args.directory)}")
    return EXIT_OK


def _restore_topics(args: argparse.Namespace, repository: Repository, manifest: BackupManifest) -> int:
    pairs = [one.split("=") for one in args.topic]
    for text, pair in zip(args.topic, pairs, strict=True):
        if len(pair) != 2 or not all(pair):
            raise CommandError(f"--topic: must be NAME=NEW, got {text!r}")
    new_names = [new_name for _, new_name in pairs]
    for new_name in new_names:
        if new_names.count(new_name) > 1:
            raise CommandError(f"--topic: two topics cannot have the new name {new_name!r}")
    progress = TransferProgress("restore", SystemClock())
    fs = RealFs()
    target = _data_dir(fs, args.directory)
    copier = TopicCopier(fs, SystemClock(), repository, manifest, target, _source(args), progress.add)
    restored = []
    for name, new_name in pairs:
        try:
            head = copier.copy(name, new_name)
        finally:
            progress.clear()
        restored.append(reports.RestoredTopic(topic=name, restored_as=new_name, head_seq=head))
        if not args.json:
            print(f"restored topic {name} of backup {manifest.head.id} as {new_name}, to seq {head}")
    if args.json:
        backup = reports.head_fields(manifest.head)
        directory = path_text(args.directory)
        write_json(reports.RestoreReport(directory=directory, backup=backup, topics=restored))
    return EXIT_OK


def _add_prune(parser: argparse.ArgumentParser) -> None:
    _add_url(parser)
    parser.add_argument(
        "--keep", metavar="N", type=int, required=True, help="the newest N of each data directory"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be deleted")


def _prune(args: argparse.Namespace) -> int:
    if args.keep < 1:
        raise CommandError(f"--keep: must be at least 1, got {args.keep}", EXIT_ERROR)
    with repository_of(args.store) as repository:
        pruned = prune(repository, args.keep, is_dry=args.dry_run)
        url = repository.store.url
    if args.json:
        write_json(
            reports.PruneReport(
                url=url,
                is_dry_run=args.dry_run,
                backups=pruned.backups,
                objects=pruned.objects,
                bytes=pruned.bytes,
                is_create_running=pruned.is_create_running,
            )
        )
    else:
        print(*reports.prune_text(pruned, is_dry=args.dry_run), sep="\n")
    return EXIT_OK


ACTIONS: Final = {
    "create": CommandAction(
        "create a backup of a data directory",
        _add_create,
        _create,
        "topicsd backup create ./topics-data --to s3://bucket/topics",
    ),
    "list": CommandAction(
        "list the backups of a store", _add_url, _list, "topicsd backup list s3://bucket/topics"
    ),
    "verify": CommandAction(
        "find damaged and missing objects",
        _add_verify,
        _verify,
        "topicsd backup verify s3://bucket/topics",
    ),
    "restore": CommandAction(
        "restore a backup into an empty directory",
        _add_restore,
        _restore,
        "topicsd backup restore s3://bucket/topics ./restored\n"
        "  topicsd backup restore s3://bucket/topics ./topics-data --topic orders=orders-before",
    ),
    "prune": CommandAction(
        "delete old backups, and objects that no backup names",
        _add_prune,
        _prune,
        "topicsd backup prune s3://bucket/topics --keep 7",
    ),
}

COMMAND = Command(
    name="backup",
    summary="create, list, verify, restore and prune backups",
    description=DESCRIPTION,
    example="  topicsd backup create ./topics-data --to s3://bucket/topics",
    add_arguments=add_arguments,
    run=run,
    exit_codes="exit codes: 0 done, 1 problems in the data, 2 the command could not run, 130 interrupted",
)
