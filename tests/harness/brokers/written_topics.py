"""Shared topics in a real store and catalog, without a broker: blobs with records of several topics.

Promises: every record is unique, `expected` has them by topic and seq, and `contents` reads each extent with
the code of readers and asserts that nothing is damaged.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from shared.runtime.clock import SystemClock
from topicsd.broker.catalog_of_store import adopt_store
from topicsd.broker.frames_v1 import FRAMES_V1, SEGMENT_V1, NewFrame, Rebase, decode_frames, encode_frames
from topicsd.broker.lls1 import FOLDER, SliceBody, encode_blob
from topicsd.broker.repeats import Repeats
from topicsd.broker.segment_v1 import SegmentParts
from topicsd.catalog.open_catalog import FILE_NAME
from topicsd.catalog.shared.shared_catalog import (
    EXTENTS_AT_ONCE,
    REPEATED_MS,
    Part,
    SharedCatalog,
    SharedExtent,
    Slice,
)
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.store.file_objects import FileObjects
from topicsd.store.object_store import ObjectStore

PART_BYTES = 1 << 20


class WrittenTopics:
    def __init__(self, store: ObjectStore, catalog: SharedCatalog, topics: Mapping[str, int]) -> None:
        """`topics` are the names and incarnations of topics, which are created."""
        self.store = store
        self.catalog = catalog
        self.topics = topics
        self.expected: dict[str, list[bytes]] = defaultdict(list)
        adopt_store(store, catalog, Repeats(SystemClock()))
        for name, incarnation in topics.items():
            catalog.create(name, incarnation, b"{}")

    def write(self, blobs: int, records: int = 3, size: int = 50) -> None:
        """Commit blobs with some records of each topic."""
        for _ in range(blobs):
            bodies: list[bytes] = []
            for name, incarnation in self.topics.items():
                values = [b'"%s"' % secrets.token_hex(size // 2).encode() for _ in range(records)]
                bodies.append(encode_frames([NewFrame(value) for value in values], incarnation, 1, 1000))
                self.expected[name] += values
            slices = [
                SliceBody(name, records, [body]) for name, body in zip(self.topics, bodies, strict=True)
            ]
            blob = encode_blob(1000, FRAMES_V1, slices)
            key = f"{FOLDER}/{secrets.token_hex(16)}"
            self.store.create(key, blob.parts, secrets.token_hex(16))
            committed = [
                Slice(name, incarnation, offset, (Part(secrets.token_hex(8), records, len(body)),))
                for (name, incarnation), offset, body in zip(
                    self.topics.items(), blob.offsets, bodies, strict=True
                )
            ]
            for (result,) in self.catalog.commit(key, FRAMES_V1, committed):
                assert result.status == "committed"

    def extents(self, name: str) -> list[SharedExtent]:
        extents: list[SharedExtent] = []
        while page := self.catalog.extents_from(
            name, extents[-1].last_seq + 1 if extents else 1, EXTENTS_AT_ONCE
        ):
            extents += page
        return extents

    def contents(self, name: str) -> list[bytes]:
        """Return the records of a topic, whose seqs begin at 1 and have no gap."""
        records: list[bytes] = []
        for extent in self.extents(name):
            assert extent.first_seq == len(records) + 1
            records += self._records_of(name, extent)
        return records

    def _records_of(self, name: str, extent: SharedExtent) -> list[bytes]:
        rebase = Rebase(self.topics[name], extent.first_seq, extent.last_seq)
        if extent.encoding != SEGMENT_V1:
            body = self.store.read(extent.key, extent.byte_offset, extent.byte_length)
            decoded = decode_frames(body, rebase, encoding=extent.encoding)
            assert not decoded.damaged
            return [record.data for record in decoded.records]
        read, parts = partial(self.store.read, extent.key), SegmentParts()
        seq = extent.first_seq
        records: list[bytes] = []
        while seq <= extent.last_seq:
            part = parts.read(read, extent.key, rebase, extent.byte_length, seq, PART_BYTES)
            assert part is not None
            decoded = decode_frames(part.body, part.rebase, encoding=SEGMENT_V1)
            assert not decoded.damaged
            records += [record.data for record in decoded.records]
            seq = decoded.next_seq
        return records

    def check(self) -> None:
        """Assert that every topic has its records, each once."""
        for name in self.topics:
            assert self.contents(name) == self.expected[name], name


def old_topics_in(folder: Path, now_ms: int, topics: int = 3) -> WrittenTopics:
    """Return topics in a folder with a SQLite catalog, whose clock is too slow by the age of old extents."""
    folder.mkdir(exist_ok=True)
    catalog = SqliteSharedCatalog(str(folder / FILE_NAME), lambda: now_ms - REPEATED_MS - 60_000)
    return WrittenTopics(
        FileObjects(RealFs(), str(folder)), catalog, {f"t{number}": number + 1 for number in range(topics)}
    )
