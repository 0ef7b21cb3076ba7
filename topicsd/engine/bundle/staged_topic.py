"""A topic that another process has put into the directory of this shard, to be adopted as a new topic.

The folder is `incoming/<token>` of the shard's directory: a bundle file, and segment files with the names
that they get, except that their epoch is STAGED_EPOCH. Only a process that may write to the data directory
can make one, and the request names it by its token, so that a client can have no other file read.

S1  The topic is new: it gets the next epoch of the shard. Epoch and shard are in no record, only in the
    header of `.data`, which is replaced. The records have the id of the topic already.
S2  Each file is moved, not copied, and then synced by the adopt. A crash before the frame leaves a directory
    with a bundle file, which the next start drops; the process that staged the topic stages it again.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final

import msgspec

from shared.contract.errors import NOT_IMPLEMENTED, Refusal, invalid
from topicsd.disk.atomic_replace import write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import BUNDLE_NAME, is_token
from topicsd.engine.bundle.adopt import Adopter
from topicsd.engine.bundle.bundle_format import Bundle, BundleDamage, decode_bundle
from topicsd.engine.bundle.segment_source import suffixes_of
from topicsd.engine.checkpoint.segment_copy import Files
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.log.file_header import UnknownVersion
from topicsd.log.writer import Identity
from topicsd.segment.data_file import SegmentHeader, encode_segment_header
from topicsd.segment.entry import DATA, SegmentEntry, SegmentName

STAGED_EPOCH: Final = 1
SECTIONS: Final = frozenset(("producers", "cursors", "queue"))
"""What a new topic takes over. Routes and ownership belong to the original."""


class StagedSource:
    """The segment files of a staged topic; a `SegmentSource`."""

    def __init__(self, fs: Fs, folder: str, identity: Identity) -> None:
        self._fs = fs
        self._folder = folder
        self._identity = identity

    def stays(self, entry: SegmentEntry) -> bool:
        return False

    def fetch(self, name: SegmentName, entry: SegmentEntry, path: str) -> list[str]:
        source = os.path.join(self._folder, name._replace(epoch=STAGED_EPOCH).key(""))
        for suffix in suffixes_of(entry):
            self._fs.rename(source + suffix, path + suffix)
        header = SegmentHeader(self._identity.shard, self._identity.instance, *name)
        fd = self._fs.open_write(path + DATA)
        try:
            write_all(self._fs, fd, encode_segment_header(header), 0)
        finally:
            self._fs.close(fd)
        return [path + suffix for suffix in suffixes_of(entry)]


class StagedTopics:
    """The staged topics of one shard."""

    def __init__(self, shard: ShardState, adopter: Adopter, files: Files, *, has_catalog: bool) -> None:
        self._shard = shard
        self._adopter = adopter
        self._files = files
        self._has_catalog = has_catalog

    def adopt(self, name: str, token: str) -> BackgroundJob[Topic | Refusal]:
        """Adopt the staged topic with this token and name; a refusal leaves the shard as it was."""
        if self._has_catalog:
            message = "a server with a catalog cannot restore a topic; restore it on a server without one"
            return Refusal(NOT_IMPLEMENTED, message)
        if not is_token(token):
            return invalid("folder", "must be 16 hexadecimal digits")
        folder = self._files.paths.incoming(token)
        try:
            bundle: Bundle = yield partial(_read_bundle, self._files.fs, folder)
        except FileNotFoundError:
            return invalid("folder", f"shard {self._shard.number:02d} has no staged topic {token}")
        except (BundleDamage, UnknownVersion) as damage:
            return invalid("folder", f"{BUNDLE_NAME}: {damage}")
        entry = bundle.topic
        if (entry.name, entry.epoch) != (name, STAGED_EPOCH) or not SECTIONS.issuperset(entry.sections):
            return invalid("folder", f'is not staged as topic "{name}"')
        # No topic with this name had this epoch: those that this shard creates have an ordinal of its log.
        refusal = self._shard.departure_of(name)
        if refusal is not None:
            return refusal
        topic = msgspec.structs.replace(entry, epoch=self._shard.next_epoch())
        bundle = bundle._replace(topic=topic)
        source = StagedSource(self._files.fs, folder, self._files.identity)
        return (yield from self._adopter.adopt(bundle, source))


def _read_bundle(fs: Fs, folder: str) -> Bundle:
    fd = fs.open_read(os.path.join(folder, BUNDLE_NAME))
    try:
        return decode_bundle(fs.pread(fd, fs.fstat(fd).size, 0))
    finally:
        fs.close(fd)
