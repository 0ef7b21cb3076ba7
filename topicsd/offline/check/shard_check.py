"""The check of a whole shard: the checkpoint files, each batch, each frame, and a replay.

Batches are checked against the chain, frames against their checksums. The log is replayed as by a start.

The check continues after damage, so that one run reports all faults and not only the first. Seqs are checked
up to the first missing frame; after it, each frame is checked by itself.
"""

from __future__ import annotations

from contextlib import closing

import msgspec

from shared.ipc.placement import shard_of
from shared.runtime.clock import Clock
from topicsd.disk.access import os_error_reason
from topicsd.engine.replay import ReplayError
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.frame import HEADER, KNOWN_TYPES, LEN_BYTES, U32, FrameType
from topicsd.log.reader import FoundBatch
from topicsd.log.walk import LogFileFound, Walk
from topicsd.offline.check.checkpoint_check import CheckpointCheck
from topicsd.offline.check.damage_search import DamagedFrame, Place, Stretch, read_on
from topicsd.offline.check.finding import Finding, Level
from topicsd.offline.check.frame_check import Complaint, FrameCheck
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard
from topicsd.offline.report.shard import notes, problems_around
from topicsd.offline.shard_log import End
from topicsd.offline.table import plural, readable
from topicsd.segment.entry import SegmentDamage

_APPEND = FrameType.APPEND


class ShardVerdict(msgspec.Struct, kw_only=True):
    """The result of the check of one shard: totals, problems and notes."""

    shard: int
    path: str
    files: int = 0
    """The number of log files, with those that only the older snapshot needs."""
    segments: int = 0
    batches: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[Finding] = []
    notes: list[str] = []


def check_shard(data_dir: DataDir, shard: int, clock: Clock) -> ShardVerdict:
    paths = data_dir.paths(shard)
    verdict = ShardVerdict(shard=shard, path=readable(paths.root))
    try:
        with closing(LoadedShard(data_dir, shard, clock)) as loaded:
            ShardCheck(loaded, verdict).run()
    except OSError as error:
        what = f"cannot be read: {os_error_reason(error)}"
        verdict.problems.append(Finding(what=what, file=readable(str(error.filename or paths.root))))
    return verdict


class ShardCheck:
    """The check of one shard, which fills in a verdict."""

    def __init__(self, loaded: LoadedShard, verdict: ShardVerdict) -> None:
        self._loaded = loaded
        self._data_dir = loaded.data_dir
        self._shard = loaded.shard
        self._log = loaded.log
        self._verdict = verdict
        self._replays = not loaded.problem
        """Whether batches are still replayed: False after the first place where a start would stop."""
        self.refused = ""
        """Why replay refused a whole batch; empty when it refused none."""
        self._check = FrameCheck(loaded.basis.names)
        self._check.heads |= loaded.basis.heads
        self.checkpoint = CheckpointCheck(loaded, self._find, verdict.notes.append)
        self._missed_nothing = True
        """Whether every frame so far was whole, so that the next seq of each topic is known."""

    def run(self) -> None:
        log, verdict = self._log, self._verdict
        self.checkpoint.run()
        if self._loaded.problem and not any(found.level is Level.STOPS for found in verdict.problems):
            self._find(Finding(what=f"{self._loaded.problem}. A server does not start this shard"))
        for sentence in self._loaded.basis.complaints if self._loaded.basis.snapshot is None else ():
            verdict.notes.append(sentence)
        log.walk(self._loaded.identity, self._batch)
        self._replays = False
        if log.end is End.DAMAGED:
            self._behind_damage()
        elif log.end is End.UNREADABLE:
            self._find(Finding(what=log.problem))
            self._each_by_itself(log.files)
        for sentence in problems_around(log):
            self._find(Finding(what=sentence, level=Level.HARMLESS))
        verdict.notes += notes(log)
        if log.end is End.TORN:
            self._behind_tear()
        self._note_cut_remains()
        self._note_misplaced()
        verdict.files = len(log.past) + len(log.files)
        verdict.segments = self.checkpoint.segments
        verdict.frames = self._check.frames
        verdict.records = self._check.records + self.checkpoint.records
        verdict.bytes += FILE_HEADER_BYTES * verdict.files + self.checkpoint.bytes

    def _batch(self, batch: FoundBatch, position: int) -> None:
        file = self._log.name_of(batch)
        self._check_batch(batch, file)
        if not self._replays:
            return
        try:
            self._loaded.replay_batch(batch, position)
        except ReplayError as error:
            self._replays = False
            self.refused = f"{file}: the frame of ordinal {error.ordinal} {error.what}"
            self._find(self._named(file, _frame_of(batch, error.ordinal), f"the frame {error.what}"))
        except SegmentDamage as damage:
            self._replays = False
            what = f"a delete in it cannot be replayed: {damage}. A server does not start this shard"
            self._find(Finding(what=what, file=file, offset=batch.offset))

    def _check_batch(self, batch: FoundBatch, file: str) -> None:
        self._verdict.batches += 1
        self._verdict.bytes += batch.closing.length + BATCH_END_BYTES
        for complaint in self._check.batch(batch):
            self._replays = False
            self._find(self._named(file, complaint, complaint.what))

    def _named(self, file: str, at: Complaint, what: str) -> Finding:
        name = self._check.names.get(at.topic_id)
        return Finding(what=what, file=file, offset=at.offset, topic=name, seq=at.seq or None)

    # -- after the place where the log stopped -----------------------------------------------------------

    def _behind_damage(self) -> None:
        log, walk = self._log, self._log.walked
        assert walk is not None
        file = log.file_named(walk.place)
        found: list[Finding] = []
        if file.header is not None:
            place = Place(walk.offset, walk.ordinal, walk.chain)
            found = self._stretches(file, place, walk.remains_end)
        if found:
            # The reason of the walk belongs to the first damaged range.
            found[0] = msgspec.structs.replace(found[0], what=f"{found[0].what}. {_sentence(walk.reason)}")
        else:
            what = f"the log does not go on here{_missing(walk)}. {_sentence(walk.reason)}"
            found = [Finding(what=what, file=walk.place, offset=walk.offset)]
        self._verdict.problems += found
        self._each_by_itself([one for one in walk.beyond if one.name != walk.place])

    def _each_by_itself(self, files: list[LogFileFound]) -> None:
        """Check files that cannot be read as part of the log, each from its own start."""
        for file in files:
            if file.header is None:
                self._find(Finding(what=file.damage, file=file.name, offset=0))
                continue
            place = Place(FILE_HEADER_BYTES, file.header.first_ordinal, file.header.chain_seed)
            data_end = FILE_HEADER_BYTES + self._log.remains_bytes(file, FILE_HEADER_BYTES)
            self._verdict.problems += self._stretches(file, place, data_end)

    def _stretches(self, file: LogFileFound, place: Place, data_end: int) -> list[Finding]:
        def on_batch(batch: FoundBatch) -> None:
            self._check_batch(batch, file.name)

        found = read_on(self._data_dir.fs, file, place, data_end, on_batch)
        return [self._damage(file.name, stretch) for stretch in found]

    def _damage(self, file: str, stretch: Stretch) -> Finding:
        size = plural(stretch.end - stretch.offset, "byte")
        frame = stretch.frame
        if frame is None:
            what = f"{size} are whole frames, but not the batch that belongs here"
            return Finding(what=what, file=file, offset=stretch.offset)
        topic, seq, words = self._record(frame)
        self._missed_nothing = False
        what = f"{frame.what}{words}; {size} from {stretch.offset} on are no whole batch"
        return Finding(what=what, file=file, offset=frame.offset, topic=topic, seq=seq)

    def _record(self, frame: DamagedFrame) -> tuple[str | None, int | None, str]:
        """Return topic and seq of a damaged frame as far as known, and a phrase that describes it."""
        claims, before = frame.claims, frame.before
        names, heads = self._check.names | frame.names, self._check.heads | frame.heads
        if claims is not None and claims.type == _APPEND and claims.topic_id in names:
            expected = heads.get(claims.topic_id, 0) + 1
            follows = self._missed_nothing or claims.topic_id in frame.heads or claims.seq < expected
            return names[claims.topic_id], expected if follows else claims.seq, ""
        if claims is not None and claims.type in KNOWN_TYPES and claims.type != _APPEND:
            words = f" (by its header it is a {FrameType(claims.type).name} frame)"
        else:
            words = " (its header is none that belongs here)"
        if before in names:
            words += f', right behind seq {heads[before]} of topic "{names[before]}"'
        return None, None, words

    # -- notes -------------------------------------------------------------------------------------------

    def _behind_tear(self) -> None:
        """Note the whole batches, and the damage, in the torn tail that a start will cut off."""
        walk = self._log.walked
        assert walk is not None
        file = self._log.file_named(walk.place)
        if file.header is None:
            return
        behind = FrameCheck()
        batches = 0

        def on_batch(batch: FoundBatch) -> None:
            nonlocal batches
            batches += 1
            list(behind.batch(batch))

        place = Place(walk.offset, walk.ordinal, walk.chain)
        for stretch in read_on(self._data_dir.fs, file, place, walk.remains_end, on_batch):
            if stretch.frame is not None:
                topic, seq, words = self._record(stretch.frame)
                words = words if topic is None else f', seq {seq} of topic "{topic}"'
                where = f"at offset {stretch.frame.offset} of {file.name}"
                self._verdict.notes.append(f"in the torn tail, {where}: {stretch.frame.what}{words}")
        if batches:
            self._verdict.notes.append(
                f"behind the tear stand {plural(batches, 'whole batch', 'whole batches')} with "
                f"{plural(behind.records, 'record')} that are cut off with it"
            )

    def _note_cut_remains(self) -> None:
        """Note the bytes that earlier starts cut off in files before the last."""
        walk = self._log.walked
        if walk is None:
            return
        for file in walk.files:
            name = file.found.name
            remains = self._log.remains_bytes(file.found, file.end) if name != walk.place else 0
            if remains:
                cut = f"{plural(remains, 'byte')} at offset {file.end} of {name}"
                self._verdict.notes.append(f"{cut} were cut off by an earlier start and are never read")

    def _note_misplaced(self) -> None:
        for topic in self._loaded.state.topics.values():
            owner = shard_of(topic.topic_id, self._data_dir.layout.shards)
            if owner != self._shard:
                belongs = f"its name belongs to shard {owner}, and there a server looks for it"
                self._verdict.notes.append(f'topic "{topic.name}" is here, but {belongs}')

    def _find(self, finding: Finding) -> None:
        self._verdict.problems.append(finding)


def _frame_of(batch: FoundBatch, ordinal: int) -> Complaint:
    """Return the offset, topic and seq of the frame with this ordinal, without a message."""
    at = batch.start
    for _ in range(ordinal - batch.first_ordinal):
        at += LEN_BYTES + U32.unpack_from(batch.buffer, at)[0]
    _, _, _, topic_id, seq = HEADER.unpack_from(batch.buffer, at)[:5]
    return Complaint(batch.offset + at - batch.start, "", topic_id, seq)


def _missing(walk: Walk) -> str:
    """Return a phrase about missing frames, by the first ordinal of the next file, or ""."""
    later = next((file for file in walk.beyond if file.header is not None), None)
    if later is None or later.first_ordinal <= walk.ordinal:
        return ""
    gap = f"the frames of ordinals {walk.ordinal} to {later.first_ordinal - 1} are missing"
    return f": {gap}, and {later.name} is the next file there is"


def _sentence(reason: str) -> str:
    return f"It stands in front of data that was synced, so a server does not start this shard: {reason}"
