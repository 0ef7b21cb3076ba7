"""An active segment that cannot be gone on with is sealed as it stands; its topic goes on in a new one.

Its entry says how many records it had, and none of them is taken out: what is good of them is read, and what
is not is told to whoever reads it, as of every sealed segment. The index gets its footer when it is whole;
else it stays without, and readers make it again from .data. The tags are those of the records that can be
read: nobody is given one of the others, so none of them can come back.

Until a snapshot says that it is sealed, nothing of this was done: whoever opens it as an active segment cuts
the footer off and takes the tags away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from topicsd.disk.atomic_replace import exists, read_all, replace_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.segment.data_file import FoundFrame, is_media_error, scan_data
from topicsd.segment.entry import DATA, INDEX, TAGS, SegmentEntry, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, IndexDamage, decode_index, encode_footer
from topicsd.segment.tags_file import encode_tags, tags_of


def close_damaged(fs: Fs, paths: ShardPaths, name: SegmentName, entry: SegmentEntry) -> bool:
    """Seal what the entry says of it; whether there are tags. What was written to .data is synced already."""
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
        for found in scan_data(lambda offset, size: fs.pread(fd, size, offset), name, entry):
            if isinstance(found, FoundFrame):
                yield found.seq, found.frame.tag
    finally:
        fs.close(fd)
