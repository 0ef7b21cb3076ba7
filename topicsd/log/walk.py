"""The walk over a shard's log, from its first batch to its end, and the verdict on the end.

The walk changes nothing: recovery acts on the result, `inspect` and `verify` print it. A batch is delivered
when it fits (see `reader.py`). Where no further batch fits, a table decides:

    linked       the next file begins with the ordinal and the chain that this one stopped at
    synced past  a later write proves that more of this file was synced
    remains      the file has bytes after this place that are not zero
    later files  there are files after this one

Proof of a sync is a BatchEnd after the place, or in a later file, that records it; a CURRENT that names a
later file, or that is `clean` with an end after the place; and for the header of a file, a CURRENT that
names the file. Without such proof no byte after the place was ever promised to survive a power cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_wal_name, wal_name
from topicsd.log.current_file import Current
from topicsd.log.file_header import FILE_HEADER_BYTES, FileHeader, UnknownVersion, parse_file_header
from topicsd.log.files import LogPlace
from topicsd.log.frame import FrameDamage
from topicsd.log.reader import WalBatch, WalBatchReader, batch_ends, survey

FIRST_ORDINAL = 1


class LogVerdict(Enum):
    CONTINUE = "the log continues in the next file"
    END = "the log ends here"
    CUT = "a torn tail: the bytes after it were never acknowledged as synced"
    REFUSE = "damage before synced data"


ANY = None
# linked, synced past, remains, later files
VERDICTS: list[tuple[tuple[bool | None, bool | None, bool | None, bool | None], LogVerdict]] = [
    ((True, ANY, ANY, ANY), LogVerdict.CONTINUE),
    ((False, True, ANY, ANY), LogVerdict.REFUSE),
    ((False, False, False, False), LogVerdict.END),
    ((False, False, True, ANY), LogVerdict.CUT),
    ((False, False, False, True), LogVerdict.CUT),
]


def verdict_on(linked: bool, synced_past: bool, remains: bool, later_files: bool) -> LogVerdict:
    case = (linked, synced_past, remains, later_files)
    matches = [
        verdict
        for row, verdict in VERDICTS
        if all(want is ANY or want == got for want, got in zip(row, case, strict=True))
    ]
    assert len(matches) == 1, f"{case} has {len(matches)} rows"
    return matches[0]


class OpenWalFile(NamedTuple):
    """A WAL file of the directory, open for reading."""

    name: str
    first_ordinal: int
    fd: int
    size_bytes: int
    header: FileHeader | None
    damage: str
    """Reason why the header is missing; else empty."""


class WalkedFile(NamedTuple):
    """A file that is part of the log, up to `end`."""

    wal_file: OpenWalFile
    start_position: int
    """Position of the first byte after the header."""
    end: int
    """Offset after its last batch."""


class Walk(NamedTuple):
    """The result of a walk; `files` are part of the log, `beyond` are not."""

    files: list[WalkedFile]
    beyond: list[OpenWalFile]
    verdict: LogVerdict
    place: str
    """File that the verdict is about."""
    offset: int
    remains_end: int
    """Offset after the last byte in that file that is not zero."""
    reason: str
    position: int
    ordinal: int
    chain: int
    has_cut_batches: bool = False
    """With CUT: a BatchEnd follows the place, so the cut removes a batch that was written whole."""

    @property
    def is_short(self) -> bool:
        """Whether a file is shorter than its header says: another program cut it."""
        return any(
            file.wal_file.header is not None and file.wal_file.size_bytes < file.wal_file.header.file_bytes
            for file in self.files
        )


class UnreadableLog(Exception):
    """Files that are not a log of this shard, or a log with a missing file."""


class BatchRefused(Exception):
    """A refusal by `on_batch` of an intact batch with invalid content; the walk adds the place."""

    place = ""


OnBatch = Callable[[WalBatch, int], None]
"""Callback for each batch, with the position of its first byte."""

OnFile = Callable[[OpenWalFile, int], None]
"""Callback for each file before its first batch, with the position of the first byte after its header."""


def ignore_file(file: OpenWalFile, position: int) -> None:
    del file, position


def open_wal_files(
    fs: Fs, paths: ShardPaths, distrust: Callable[[int], bool] | None = None
) -> list[OpenWalFile]:
    """Open the WAL files of a shard for reading, in the order of their ordinals.

    The caller closes them. Distrusted files are dropped from the page cache before they are read.
    """
    wal_files: list[OpenWalFile] = []
    try:
        for name in names_in(fs, paths.wal):
            ordinal = parse_wal_name(name)
            if ordinal is not None:
                path = os.path.join(paths.wal, name)
                is_distrusted = distrust is not None and distrust(ordinal)
                wal_files.append(_open_wal_file(fs, path, name, ordinal, is_distrusted))
    except (OSError, UnreadableLog):
        for file in wal_files:
            fs.close(file.fd)
        raise
    return wal_files


def _open_wal_file(fs: Fs, path: str, name: str, ordinal: int, is_distrusted: bool) -> OpenWalFile:
    fd = fs.open_read(path)
    try:
        if is_distrusted:
            fs.drop_cache(fd)
        header, damage = _read_header(fs, fd, ordinal)
        return OpenWalFile(name, ordinal, fd, fs.fstat(fd).size, header, damage)
    except UnknownVersion as error:
        fs.close(fd)
        raise UnreadableLog(f"{path}: {error}") from error
    except OSError:
        fs.close(fd)
        raise


def _read_header(fs: Fs, fd: int, ordinal: int) -> tuple[FileHeader | None, str]:
    """Return the header, or None and what is wrong with it."""
    try:
        header = parse_file_header(fs.pread(fd, FILE_HEADER_BYTES, 0))
    except FrameDamage as error:
        return None, f"the file header is damaged: {error.what}"
    if header.first_ordinal != ordinal:
        return None, f"the header's first ordinal {header.first_ordinal} does not match the file name"
    return header, ""


class SnapshotLogState(NamedTuple):
    """What a snapshot records about the log.

    The snapshot holds everything before `start`, and the log was synced up to `synced_offset` of
    `synced_file`.
    """

    start: LogPlace
    synced_file: int
    synced_offset: int


def walk_log(
    fs: Fs,
    files: list[OpenWalFile],
    current: Current | None,
    on_batch: OnBatch,
    known: SnapshotLogState | None = None,
    on_file: OnFile = ignore_file,
) -> Walk:
    """Read the log, pass each of its batches to `on_batch`, and judge the place where it stops.

    The walk begins at the start of the log, or at the place of a snapshot; the first of `files` holds it.
    """
    check_start(files, current, known)
    walked: list[WalkedFile] = []
    start_place = known.start if known else None
    position, ordinal, chain = 0, FIRST_ORDINAL, 0
    if start_place is not None:
        position = start_place.offset - FILE_HEADER_BYTES
        ordinal, chain = start_place.ordinal, start_place.chain
    for index, file in enumerate(files):
        later = files[index + 1 :]
        offset = 0
        if file.header is not None:
            is_first = start_place is not None and index == 0
            reader = WalBatchReader(fs, file.fd, file.header, start_place if is_first else None)
            start = 0 if is_first else position
            on_file(file, start)
            while not _links(later, reader.ordinal, reader.chain):
                batch = reader.next()
                if batch is None:
                    break
                try:
                    on_batch(batch, position)
                except BatchRefused as error:
                    error.place = f"{file.name} at offset {batch.offset}"
                    raise
                position += reader.offset - batch.offset
            offset, ordinal, chain = reader.offset, reader.ordinal, reader.chain
            walked.append(WalkedFile(file, start, offset))
        linked = file.header is not None and _links(later, ordinal, chain)
        if linked:
            continue
        remains_end, proof = _evidence(fs, files, index, offset, current, known)
        # A file without a header counts as remains, even when it is empty.
        remains = remains_end > offset or file.header is None
        verdict = verdict_on(linked, bool(proof), remains, bool(later))
        cuts = verdict is LogVerdict.CUT and _has_batches(fs, files[index:], offset)
        if later and later[0].header is None and remains_end == offset:
            # This file is whole; the fault is in the next file, whose header cannot be read.
            file, offset, remains_end = later[0], 0, later[0].size_bytes
        reason = "; ".join(part for part in (file.damage, proof) if part) or verdict.value
        place = (file.name, offset, remains_end, reason)
        return Walk(walked, later, verdict, *place, position, ordinal, chain, cuts)
    return Walk(walked, [], LogVerdict.END, "", 0, 0, LogVerdict.END.value, position, ordinal, chain)


def _has_batches(fs: Fs, files: list[OpenWalFile], offset: int) -> bool:
    """Return whether a BatchEnd follows `offset` of the first file, or is in a later one."""
    for file in files:
        if file.header is not None and any(batch_ends(fs, file.fd, file.header.epoch, offset)):
            return True
        offset = FILE_HEADER_BYTES
    return False


def _links(later: list[OpenWalFile], ordinal: int, chain: int) -> bool:
    """Return whether the next file continues exactly here.

    Bytes of this file after that place were cut off by a recovery.
    """
    header = later[0].header if later else None
    return header is not None and header.first_ordinal == ordinal and header.chain_seed == chain


def check_start(files: list[OpenWalFile], current: Current | None, known: SnapshotLogState | None) -> None:
    """Raise UnreadableLog when a file is missing that the walk needs to begin."""
    if known is not None:
        if not files or files[0].first_ordinal != known.start.file:
            raise UnreadableLog(f"the snapshot continues in {wal_name(known.start.file)}, which is missing")
    elif files and files[0].first_ordinal != FIRST_ORDINAL:
        raise UnreadableLog(
            f"the log does not reach back to its start, and there is no snapshot to start from: its first "
            f"file is {files[0].name}"
        )
    is_past = known is not None and current is not None and current.file < known.start.file
    if current is not None and not is_past and current.file not in {file.first_ordinal for file in files}:
        raise UnreadableLog(f"CURRENT names {wal_name(current.file)}, which is missing")


def _evidence(
    fs: Fs,
    files: list[OpenWalFile],
    index: int,
    offset: int,
    current: Current | None,
    known: SnapshotLogState | None,
) -> tuple[int, str]:
    """Return the end of the file's remains, and the proof that it was synced past `offset`."""
    file = files[index]
    remains_end, proof = offset, ""
    if file.header is not None:
        rest = survey(fs, file.fd, file.header.epoch, offset)
        remains_end = rest.data_end
        if rest.synced > offset:
            proof = f"a later batch records that the file was synced up to {rest.synced}"
    else:
        remains_end = file.size_bytes
    if current is not None:
        if current.file > file.first_ordinal:
            proof = f"CURRENT names {wal_name(current.file)}, so this file was synced completely"
        elif current.file == file.first_ordinal and current.state == "clean" and current.end > offset:
            proof = f"CURRENT records a clean end at {current.end}"
        elif current.file == file.first_ordinal and offset < FILE_HEADER_BYTES:
            proof = "CURRENT names the file, so its header was synced"
    if known is not None and (file.first_ordinal, offset) < (known.synced_file, known.synced_offset):
        proof = f"the snapshot records that the log was synced up to {known.synced_offset} of "
        proof += wal_name(known.synced_file)
    for later in files[index + 1 :]:
        if later.header is not None and survey(fs, later.fd, later.header.epoch, FILE_HEADER_BYTES).synced:
            proof = f"{later.name} has batches that were written after this file was synced completely"
    return remains_end, proof
