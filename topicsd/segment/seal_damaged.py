"""Sealing of a damaged active segment, so that its topic can continue in a new segment.

The entry keeps its number of records, and none is removed: intact records are read, and damaged ones are
reported to readers, as in every sealed segment. If the index is whole it gets its footer; otherwise it stays
without, and readers rebuild it from .data. The tags are those of the readable records: reads do not return
the other records, so none of them can reappear.

Until a snapshot records the segment as sealed, none of this counts: opening it as an active segment cuts off
the footer and removes the tags.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from topicsd.disk.atomic_replace import exists, read_all, replace_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.segment.data_file import ScannedFrame, is_media_error, scan_data
from topicsd.segment.entry import DATA, INDEX, TAGS, SegmentEntry, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, IndexDamage, decode_index, encode_footer
from topicsd.segment.tags_file import encode_tags, tags_of


def seal_damaged(fs: Fs, paths: ShardPaths, name: SegmentName, entry: SegmentEntry) -> bool:
    """Seal the records of `entry`; return whether there are tags. The .data is already synced."""
    data_path, index_path, tags_path = (
        os.path.join(paths.root, name.key(suffix)) for suffix in (DATA, INDEX, TAGS)
    )
    directory = os.path.dirname(data_path)
    if not exists(fs, directory):
        fs.make_dir(directory)
        fs.sync_dir(paths.topics)
    entries = _whole_entries(fs, index_path, entry)
    if entries is not None:
        replace_file(fs, index_path, entries + encode_footer(entries))
    tags = tags_of(_good_tags(fs, data_path, name, entry))
    if tags:
        replace_file(fs, tags_path, encode_tags(tags, entry.first_seq))
    return bool(tags)


def _whole_entries(fs: Fs, path: str, entry: SegmentEntry) -> bytes | None:
    size = entry.count * ENTRY_BYTES
    try:
        data = read_all(fs, path, size)[:size]
        index = decode_index(data, entry.first_seq, entry.count, sealed=False)
    except IndexDamage:
        return None
    except OSError as error:
        if not isinstance(error, FileNotFoundError) and not is_media_error(error):
            raise
        return None
    return data if index.data_end == entry.data_bytes else None


def _good_tags(fs: Fs, path: str, name: SegmentName, entry: SegmentEntry) -> Iterator[tuple[int, bytes]]:
    try:
        fd = fs.open_read(path)
    except FileNotFoundError:
        return
    try:
        for item in scan_data(lambda offset, size: fs.pread(fd, size, offset), name, entry):
            if isinstance(item, ScannedFrame):
                yield item.seq, item.frame.tag
    finally:
        fs.close(fd)
