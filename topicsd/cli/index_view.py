"""`topicsd inspect FILE.idx`: the index of one segment, an entry for each record."""

from __future__ import annotations

import os

import msgspec

from topicsd.cli.command import write_json
from topicsd.disk.atomic_replace import read_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import parse_segment_name, parse_topic_dir_name
from topicsd.log.file_header import UnknownVersion
from topicsd.log.frame import FLAG_BYTES, FLAG_DURABLE, FLAG_META, FLAG_NODE, FLAG_TAG
from topicsd.offline.command_error import EXIT_OK, EXIT_PROBLEM, CommandError
from topicsd.offline.table import NOTHING, facts, path_text, plural, utc
from topicsd.segment.entry import INDEX
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES, IndexDamage, SegmentIndex, decode_index

# 1 Mi records, with their footer.
INDEX_BYTES_MAX = (1 << 20) * ENTRY_BYTES + FOOTER_BYTES
FLAGS = {FLAG_TAG: "tag", FLAG_NODE: "node", FLAG_DURABLE: "durable", FLAG_META: "meta", FLAG_BYTES: "bytes"}
ROW = "  {seq:>12}  {offset:>12}  {size:>10}  {time:24}  {flags}"
HEADING = {"seq": "SEQ", "offset": "OFFSET", "size": "SIZE", "time": "TIME", "flags": "FLAGS"}


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of an index file."""

    seq: int
    offset: int
    size: int
    """The size of the frame in .data; 0 for a dead record that a rewrite left out."""
    ts: int
    time: str
    flags: list[str]


class IndexReport(msgspec.Struct, kw_only=True):
    """The content of one index file, or the problem that it has."""

    file: str
    topic_id: str | None
    epoch: int | None
    first_seq: int
    generation: int
    sealed: bool
    problem: str = ""
    count: int = 0
    data_end: int = 0
    """The end of the last frame in .data."""
    records: list[IndexRow] = []


def is_index(path: str) -> bool:
    return path.endswith(INDEX)


def show_index(fs: Fs, path: str, as_json: bool) -> int:
    report = index_report(fs, path)
    if as_json:
        write_json(report)
    else:
        print(*_text(report), sep="\n")
    return EXIT_PROBLEM if report.problem else EXIT_OK


def index_report(fs: Fs, path: str) -> IndexReport:
    name = os.path.basename(path)
    parsed = parse_segment_name(name)
    if parsed is None or parsed[2] != INDEX:
        raise CommandError(f"{path}: must be an index file, such as seg-0000000000000001{INDEX}")
    data = read_all(fs, path, INDEX_BYTES_MAX)
    topic = parse_topic_dir_name(os.path.basename(os.path.dirname(os.path.abspath(path))))
    is_sealed = len(data) % ENTRY_BYTES == FOOTER_BYTES % ENTRY_BYTES
    report = IndexReport(
        file=path_text(path),
        topic_id=None if topic is None else f"{topic[0]:016x}",
        epoch=None if topic is None else topic[1],
        first_seq=parsed[0],
        generation=parsed[1],
        sealed=is_sealed,
    )
    count = (len(data) - FOOTER_BYTES * is_sealed) // ENTRY_BYTES
    try:
        if count < 0 or (len(data) - FOOTER_BYTES * is_sealed) % ENTRY_BYTES:
            raise IndexDamage(f"has {len(data)} bytes, which is not a whole number of entries")
        index = decode_index(data, parsed[0], count, is_sealed)
    except (IndexDamage, UnknownVersion) as damage:
        report.problem = str(damage)
        return report
    report.count, report.data_end = index.count, index.data_end
    report.records = [_row(index, at) for at in range(index.count)]
    return report


def _row(index: SegmentIndex, at: int) -> IndexRow:
    return IndexRow(
        seq=index.first_seq + at,
        offset=index.offsets[at],
        size=index.lengths[at],
        ts=index.times_ms[at],
        time=utc(index.times_ms[at]),
        flags=[name for flag, name in FLAGS.items() if index.flags[at] & flag],
    )


def _text(report: IndexReport) -> list[str]:
    if report.problem:
        return [report.file, *facts([("WRONG", f"{report.problem}; a start rebuilds the index from .data")])]
    dead = sum(not row.size for row in report.records)
    state = "sealed, the checksum matches" if report.sealed else "active, without a checksum"
    omitted = f", {plural(dead, 'record')} removed by compaction" if dead else ""
    pairs = [
        ("state", f"{state}, generation {report.generation}"),
        ("records", f"{plural(report.count, 'entry', 'entries')} from seq {report.first_seq}{omitted}"),
        (".data", f"ends at offset {report.data_end}"),
    ]
    if report.topic_id is not None:
        pairs.insert(0, ("topic", f"id {report.topic_id}, epoch {report.epoch}"))
    rows = [
        ROW.format(
            seq=row.seq,
            offset=row.offset,
            size=row.size or NOTHING,
            time=row.time,
            flags=" ".join(row.flags) if row.size else "removed",
        ).rstrip()
        for row in report.records
    ]
    return [report.file, *facts(pairs), "", ROW.format(**HEADING), *rows]
