"""The lines of the benchmark of stores: what each measures, and its goal.

The lines whose names end with `-s3` need a bucket, which `--s3-url` names.
"""

from __future__ import annotations

from loadtest.bench.lines import Line
from loadtest.bench.result import Goal
from loadtest.store.backups import backups, reshard_offline, reshard_online
from loadtest.store.exports import exports
from loadtest.store.idle import idle
from loadtest.store.local_writes import local_writes
from loadtest.store.lost_node import lost_records
from loadtest.store.moved_topics import history, move

WRITE_GOAL = Goal(1.05, of_value=True, at_most=True)
LINES = {
    "local-writes": Line("single writes with a store over without", local_writes(False), WRITE_GOAL),
    "local-exporting": Line("the same, while all is exported", local_writes(True), None),
    "export": Line("export to a folder", exports(), None),
    "history": Line("reads of 1,000 from a folder, first time", history(), None),
    "move": Line("seal and adopt, a million records", move(), None),
    "move-exported": Line("the same, exported before", move(is_exported=True), None),
    "move-limited": Line("the same, at the background rate", move(is_limited=True), None),
    "lost-100-5": Line("lost node, 100 records/s, 5 s", lost_records(100, 5), None),
    "lost-100-30": Line("lost node, 100 records/s, 30 s", lost_records(100, 30), None),
    "lost-10000-5": Line("lost node, 10,000 records/s, 5 s", lost_records(10_000, 5), None),
    "lost-10000-30": Line("lost node, 10,000 records/s, 30 s", lost_records(10_000, 30), None),
    "backup": Line("backup of a gigabyte to a folder", backups, None),
    "reshard-linked": Line("offline reshard with hard links", reshard_offline(True), None),
    "reshard-copied": Line("offline reshard without hard links", reshard_offline(False), None),
    "reshard-online": Line("online reshard, pause of a topic", reshard_online, None),
    "idle": Line("requests of an idle server, 1,000 topics", idle(), None),
}
S3_LINES = ("export-s3", "history-s3", "move-s3", "move-exported-s3", "idle-s3")


def lines_with(s3_url: str) -> dict[str, Line]:
    """Return the lines, also those of S3 when there is a URL."""
    if not s3_url:
        return LINES
    s3 = (exports(s3_url), history(s3_url), move(s3_url), move(s3_url, is_exported=True), idle(s3_url))
    named = zip(S3_LINES, s3, strict=True)
    return LINES | {
        name: Line(LINES[name.removesuffix("-s3")].title + ", S3", work, None) for name, work in named
    }
