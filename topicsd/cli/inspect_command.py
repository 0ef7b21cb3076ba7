"""`topicsd inspect DIR`: the content of a data directory, its last run and its next start.

The command writes nothing, takes no lock, and may run at the same time as a server. It reads the log as a
start does, so it shows the heads and floors that a server would report.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from contextlib import closing

import msgspec

from shared.contract.names import topic_id
from shared.runtime.clock import SystemClock
from topicsd.cli.checkpoint_text import checkpoint_text, topic_checkpoint_text
from topicsd.cli.command import Command, write_json
from topicsd.cli.index_view import is_index, show_index
from topicsd.cli.inspect_text import COPY_NOTE, placement_text, shard_text, topic_text
from topicsd.disk.fs import RealFs
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.offline.command_error import EXIT_OK, EXIT_PROBLEM, CommandError
from topicsd.offline.data_dir import DataDir, add_directory, open_data_dir, owner_first, stray_shards
from topicsd.offline.loaded_shard import choose_snapshot, segment_files
from topicsd.offline.report.checkpoint import CheckpointReport, checkpoint_report, document
from topicsd.offline.report.frame_rows import FrameRow, heading, row_text
from topicsd.offline.report.frames import FrameListing
from topicsd.offline.report.shard import ShardReport, notes, problems, shard_report
from topicsd.offline.report.topic import TopicReport, fill_lags
from topicsd.offline.shard_log import ShardLog
from topicsd.offline.table import WIDTH, facts, path_text, plural
from topicsd.segment.reader import SegmentReader

DESCRIPTION = f"""\
Show the content of a data directory: its shards, how their last runs ended, their files, and their topics
with heads and floors. The command changes nothing and takes no lock, so it can run beside a server.

Given the path of a segment's .idx file in place of DIR, show the entries of that file.

{textwrap.fill(COPY_NOTE, WIDTH)}
"""


class DirectoryReport(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    format: int
    instance: str
    shard_count: int
    placement_version: int
    """0 without a PLACEMENT.json."""
    exceptions: dict[str, int]
    """The shards of topics that are not where the rule places them."""
    shards: list[ShardReport]
    stray_shards: list[str]
    note: str = COPY_NOTE


class CheckpointsReport(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    shards: list[CheckpointReport]


class TopicCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in the newest good snapshot of its shard."""

    shard: int
    snapshot: int | None
    problems: list[str]
    topic: SnapshotTopic


class TopicDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One topic with the state of its shard."""

    shard: int
    starts: bool
    heads_exact: bool
    problems: list[str]
    topic: TopicReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--topic", metavar="NAME", help="show one topic in detail; with --frames, its frames")
    views = parser.add_mutually_exclusive_group()
    views.add_argument("--frames", action="store_true", help="list every frame of the log")
    views.add_argument(
        "--checkpoint",
        action="store_true",
        help="show snapshots, the published manifest and the trash; with --topic, its segments",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; with --frames, one object per line"
    )


def run(args: argparse.Namespace) -> int:
    if is_index(args.directory):
        return show_index(ReadOnlyFs(RealFs()), args.directory, args.json)
    data_dir = open_data_dir(args)
    if args.checkpoint and args.topic is not None:
        return show_topic_checkpoint(data_dir, args.topic, args.json)
    if args.checkpoint:
        return show_checkpoints(data_dir, args.json)
    if args.frames:
        return show_frames(data_dir, args.topic, args.json)
    if args.topic is not None:
        return show_topic(data_dir, args.topic, args.json)
    return show_directory(data_dir, args.json)


def show_directory(data_dir: DataDir, as_json: bool) -> int:
    clock, layout = SystemClock(), data_dir.layout
    shards = [shard_report(data_dir, shard, clock) for shard in data_dir.shards]
    fill_lags([topic for shard in shards for topic in shard.topics])
    report = DirectoryReport(
        directory=path_text(data_dir.path),
        format=layout.format,
        instance=layout.instance,
        shard_count=layout.shards,
        placement_version=data_dir.placement.version,
        exceptions=data_dir.placement.exceptions,
        shards=shards,
        stray_shards=stray_shards(data_dir),
    )
    if as_json:
        write_json(report)
    else:
        count = plural(layout.shards, "shard")
        print(f"{data_dir.path}: format {layout.format}, {count}, instance {layout.instance}")
        for text in placement_text(data_dir.placement):
            print(text)
        for name in report.stray_shards:
            print(f"  shards/{name}: not one of the {count} that LAYOUT.json names; servers ignore it")
        for shard in report.shards:
            print("", *shard_text(shard), sep="\n")
        print("", *facts([("", COPY_NOTE)], indent=0), sep="\n")
    return EXIT_PROBLEM if any(shard.problems for shard in report.shards) else EXIT_OK


def show_topic(data_dir: DataDir, name: str, as_json: bool) -> int:
    damaged_shards: list[ShardReport] = []
    for shard in owner_first(data_dir, name):
        report = shard_report(data_dir, shard, SystemClock())
        if report.problems:
            damaged_shards.append(report)
        for topic in report.topics:
            if topic.topic == name:
                fill_lags([topic], _sources(data_dir, report, topic))
                _print_topic(report, topic, as_json)
                return EXIT_PROBLEM if report.problems else EXIT_OK
        for one in report.departed:
            if one.topic == name:
                raise CommandError(
                    f'topic "{name}" has departed from {data_dir.path}: {one.state}, node {one.node or "-"}, '
                    f"owner epoch {one.owner_epoch}"
                )
    raise no_such_topic(data_dir, name, damaged_shards)


def _sources(data_dir: DataDir, report: ShardReport, topic: TopicReport) -> list[TopicReport]:
    """Return the topics of all shards that own a source of the topic's routes."""
    owners = {data_dir.placement.owner_of(route.source) for route in topic.routes}
    topics = list(report.topics)
    for shard in owners - {report.shard}:
        topics += shard_report(data_dir, shard, SystemClock()).topics
    return topics


def _print_topic(report: ShardReport, topic: TopicReport, as_json: bool) -> None:
    if as_json:
        write_json(
            TopicDetail(
                shard=report.shard,
                starts=report.starts,
                heads_exact=report.heads_exact,
                problems=report.problems,
                topic=topic,
            )
        )
        return
    print(*topic_text(report, topic), sep="\n")
    if report.problems:
        print(*facts([("WRONG", problem) for problem in report.problems]), sep="\n")


def no_such_topic(data_dir: DataDir, name: str, damaged_shards: list[ShardReport]) -> CommandError:
    sentence = f'there is no topic "{name}" in {data_dir.path}'
    for report in damaged_shards:
        sentence += f"; shard {report.shard:02d} could not be read to its end: {report.problems[0]}"
    return CommandError(sentence)


def show_checkpoints(data_dir: DataDir, as_json: bool) -> int:
    reports = [checkpoint_report(data_dir, shard) for shard in data_dir.shards]
    if as_json:
        write_json(document(CheckpointsReport(directory=path_text(data_dir.path), shards=reports)))
    else:
        print(data_dir.path)
        for report in reports:
            print("", *checkpoint_text(report), sep="\n")
    return EXIT_PROBLEM if any(report.problems for report in reports) else EXIT_OK


def show_topic_checkpoint(data_dir: DataDir, name: str, as_json: bool) -> int:
    problems: list[str] = []
    for shard in owner_first(data_dir, name):
        report = checkpoint_report(data_dir, shard)
        for topic in report.topics:
            if topic.name == name:
                _print_topic_checkpoint(report, topic, as_json)
                return EXIT_PROBLEM if report.problems else EXIT_OK
        problems += [f"; shard {shard:02d}: {problem}" for problem in report.problems]
    raise CommandError(f'no snapshot in {data_dir.path} has a topic "{name}"{"".join(problems[:1])}')


def _print_topic_checkpoint(report: CheckpointReport, topic: SnapshotTopic, as_json: bool) -> None:
    if as_json:
        view = TopicCheckpoint(
            shard=report.shard, snapshot=report.used, problems=report.problems, topic=topic
        )
        write_json(document(view))
        return
    print(*topic_checkpoint_text(report, topic), sep="\n")
    if report.problems:
        print(*facts([("WRONG", problem) for problem in report.problems]), sep="\n")


def show_frames(data_dir: DataDir, topic: str | None, as_json: bool) -> int:
    """Print each frame as it is read, and problems and notes about the log to stderr."""
    shards = data_dir.shards if topic is None else owner_first(data_dir, topic)
    wanted_id = None if topic is None else topic_id(topic)
    code, frame_count, is_known, has_segments = EXIT_OK, 0, False, False
    for shard in shards:
        show = _show_json if as_json else _TableOfFrames(f"shard {shard:02d}  {data_dir.paths(shard).root}")
        with closing(SegmentReader(*segment_files(data_dir, shard))) as segments:
            chosen = choose_snapshot(data_dir.fs, data_dir.paths(shard), data_dir.identity(shard), segments)
        is_known = is_known or topic in chosen.names.values()
        if chosen.snapshot is not None:
            has_segments = has_segments or any(
                one.name == topic and one.segments for one in chosen.snapshot.topics
            )
        with closing(ShardLog(data_dir.fs, data_dir.paths(shard), chosen.known)) as log:
            listing = FrameListing(shard, log, wanted_id, show, chosen.names, chosen.snapshot)
            listing.run(data_dir.identity(shard))
            sys.stdout.flush()
            frame_count += listing.count
            for problem in problems(log, chosen):
                code = EXIT_PROBLEM
                print(f"topicsd: shard {shard:02d}: {problem}", file=sys.stderr)
            for note in notes(log):
                print(f"topicsd: shard {shard:02d}: {note}", file=sys.stderr)
        if topic is not None and frame_count:
            break
    if topic is not None and not frame_count:
        if not is_known:
            raise no_such_topic(data_dir, topic, [])
        where = "; its records are in segments" if has_segments else ""
        print(f'topicsd: topic "{topic}" has no frames in the log{where}', file=sys.stderr)
    return code


def _show_json(row: FrameRow) -> None:
    sys.stdout.write(msgspec.json.encode(row).decode() + "\n")


class _TableOfFrames:
    """A printer of rows, which prints the heading before the first row."""

    def __init__(self, title: str) -> None:
        self._title = title

    def __call__(self, row: FrameRow) -> None:
        if self._title:
            print(self._title, heading(), sep="\n")
            self._title = ""
        sys.stdout.write(row_text(row) + "\n")


COMMAND = Command(
    name="inspect",
    summary="show the content of a data directory; changes nothing",
    description=DESCRIPTION,
    example="  topicsd inspect ./topics-data\n"
    "  topicsd inspect ./topics-data --frames --topic orders | head\n"
    "  topicsd inspect ./topics-data/shards/00/topics/*/seg-0000000000000001.idx",
    add_arguments=add_arguments,
    run=run,
)
