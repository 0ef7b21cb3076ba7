"""The check of a whole shard: the checkpoint files, each batch, each frame, and a replay.

Batches are checked against the chain, frames against their checksums. The log is replayed as by a start.

The check continues after damage, so that one run reports all faults and not only the first. Seqs are checked
up to the first missing frame; after it, each frame is checked by itself.
"""

from __future__ import annotations

from contextlib import closing

import msgspec

from shared.runtime.clock import Clock
from topicsd.disk.access import os_error_reason
from topicsd.engine.replay import ReplayError
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.frame import HEADER, KNOWN_TYPES, LEN_BYTES, U32, FrameType
from topicsd.log.reader import WalBatch
from topicsd.log.walk import OpenWalFile, Walk
from topicsd.offline.check.checkpoint_check import CheckpointCheck
from topicsd.offline.check.damage_search import DamagedFrame, DamagedRange, ResumePoint, find_damage
from topicsd.offline.check.finding import Finding, Level
from topicsd.offline.check.frame_check import Complaint, FrameCheck
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import LoadedShard
from topicsd.offline.report.shard import notes, problems_around
from topicsd.offline.shard_log import End
from topicsd.offline.table import path_text, plural
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
    misplaced: list[str] = []
    """The topics in this shard that the placement gives to another shard."""


def check_shard(data_dir: DataDir, shard: int, clock: Clock) -> ShardVerdict:
    paths = data_dir.paths(shard)
    verdict = ShardVerdict(shard=shard, path=path_text(paths.root))
    try:
        with closing(LoadedShard(data_dir, shard, clock)) as loaded:
            ShardCheck(loaded, verdict).run()
    except OSError as error:
        what = f"read failed: {os_error_reason(error)}"
        verdict.problems.append(Finding(what=what, file=path_text(str(error.filename or paths.root))))
    return verdict


class ShardCheck:
    """The check of one shard, which fills in a verdict."""

    def __init__(self, loaded: LoadedShard, verdict: ShardVerdict) -> None:
        self._loaded = loaded
        self._data_dir = loaded.data_dir
        self._shard = loaded.shard
        self._log = loaded.log
        self._verdict = verdict
        self._is_replaying = not loaded.problem
        """Whether batches are still replayed: False after the first place where a start would stop."""
        self.refused = ""
        """Why replay refused a whole batch; empty when it refused none."""
        self._check = FrameCheck(loaded.chosen.names)
        self._check.heads |= loaded.chosen.heads
        self.checkpoint = CheckpointCheck(loaded, self._add, verdict.notes.append)
        self._is_complete = True
        """Whether every frame so far was whole, so that the next seq of each topic is known."""

    def run(self) -> None:
        log, verdict = self._log, self._verdict
        self.checkpoint.run()
        if self._loaded.problem and not any(finding.level is Level.STOPS for finding in verdict.problems):
            self._add(Finding(what=f"{self._loaded.problem}. A server does not start this shard"))
        for sentence in self._loaded.chosen.complaints if self._loaded.chosen.snapshot is None else ():
            verdict.notes.append(sentence)
        log.walk(self._loaded.identity, self._batch)
        self._is_replaying = False
        self.checkpoint.finish()
        if log.end is End.DAMAGED:
            self._check_after_damage()
        elif log.end is End.UNREADABLE:
            self._add(Finding(what=log.problem))
            self._check_separately(log.files)
        for sentence in problems_around(log):
            self._add(Finding(what=sentence, level=Level.HARMLESS))
        verdict.notes += notes(log)
        if log.end is End.TORN:
            self._note_torn_tail()
        self._note_cut_remains()
        self._note_misplaced()
        verdict.files = len(log.past) + len(log.files)
        verdict.segments = self.checkpoint.segments
        verdict.frames = self._check.frames
        verdict.records = self._check.records + self.checkpoint.records
        verdict.bytes += FILE_HEADER_BYTES * verdict.files + self.checkpoint.bytes

    def _batch(self, batch: WalBatch, position: int) -> None:
        file = self._log.name_of(batch)
        self._check_batch(batch, file)
        if not self._is_replaying:
            return
        try:
            self._loaded.replay_batch(batch, position)
        except ReplayError as error:
            self._is_replaying = False
            self.refused = f"{file}: the frame of ordinal {error.ordinal} {error.what}"
            self._add(self._finding_at(file, _frame_of(batch, error.ordinal), f"the frame {error.what}"))
        except SegmentDamage as damage:
            self._is_replaying = False
            what = f"cannot replay a delete in it: {damage}. A server does not start this shard"
            self._add(Finding(what=what, file=file, offset=batch.offset))

    def _check_batch(self, batch: WalBatch, file: str) -> None:
        self._verdict.batches += 1
        self._verdict.bytes += batch.closing.length + BATCH_END_BYTES
        for complaint in self._check.batch(batch):
            self._is_replaying = False
            self._add(self._finding_at(file, complaint, complaint.what))

    def _finding_at(self, file: str, at: Complaint, what: str) -> Finding:
        name = self._check.names.get(at.topic_id)
        return Finding(what=what, file=file, offset=at.offset, topic=name, seq=at.seq or None)

    # -- after the place where the log stopped -----------------------------------------------------------

    def _check_after_damage(self) -> None:
        log, walk = self._log, self._log.walked
        assert walk is not None
        file = log.file_named(walk.place)
        findings: list[Finding] = []
        if file.header is not None:
            resume_point = ResumePoint(walk.offset, walk.ordinal, walk.chain)
            findings = self._damage_findings(file, resume_point, walk.remains_end)
        if findings:
            # The reason of the walk belongs to the first damaged range.
            findings[0] = msgspec.structs.replace(
                findings[0], what=f"{findings[0].what}. {_refusal(walk.reason)}"
            )
        else:
            what = f"the log does not continue here{_missing_frames(walk)}. {_refusal(walk.reason)}"
            findings = [Finding(what=what, file=walk.place, offset=walk.offset)]
        self._verdict.problems += findings
        self._check_separately([one for one in walk.beyond if one.name != walk.place])

    def _check_separately(self, files: list[OpenWalFile]) -> None:
        """Check files that cannot be read as part of the log, each from its own start."""
        for file in files:
            if file.header is None:
                self._add(Finding(what=file.damage, file=file.name, offset=0))
                continue
            resume_point = ResumePoint(FILE_HEADER_BYTES, file.header.first_ordinal, file.header.chain_seed)
            data_end = FILE_HEADER_BYTES + self._log.remains_bytes(file, FILE_HEADER_BYTES)
            self._verdict.problems += self._damage_findings(file, resume_point, data_end)

    def _damage_findings(self, file: OpenWalFile, resume_point: ResumePoint, data_end: int) -> list[Finding]:
        def on_batch(batch: WalBatch) -> None:
            self._check_batch(batch, file.name)

        ranges = find_damage(self._data_dir.fs, file, resume_point, data_end, on_batch)
        return [self._damage_finding(file.name, damaged_range) for damaged_range in ranges]

    def _damage_finding(self, file: str, damaged_range: DamagedRange) -> Finding:
        size = plural(damaged_range.end - damaged_range.offset, "byte")
        frame = damaged_range.frame
        if frame is None:
            what = f"{size} are whole frames, but not the expected batch"
            return Finding(what=what, file=file, offset=damaged_range.offset)
        topic, seq, phrase = self._record(frame)
        self._is_complete = False
        what = f"{frame.what}{phrase}; {size} from offset {damaged_range.offset} on are not a whole batch"
        return Finding(what=what, file=file, offset=frame.offset, topic=topic, seq=seq)

    def _record(self, frame: DamagedFrame) -> tuple[str | None, int | None, str]:
        """Return topic and seq of a damaged frame as far as known, and a phrase that describes it."""
        header, before = frame.header, frame.before
        names, heads = self._check.names | frame.names, self._check.heads | frame.heads
        if header is not None and header.type == _APPEND and header.topic_id in names:
            # The head of an adopted topic is in its bundle.
            expected = heads.get(header.topic_id, header.seq - 1) + 1
            follows = self._is_complete or header.topic_id in frame.heads or header.seq < expected
            return names[header.topic_id], expected if follows else header.seq, ""
        if header is not None and header.type in KNOWN_TYPES and header.type != _APPEND:
            phrase = f" (its header says {FrameType(header.type).name})"
        else:
            phrase = " (its header does not belong here)"
        if before in names:
            phrase += f', directly after seq {heads[before]} of topic "{names[before]}"'
        return None, None, phrase

    # -- notes -------------------------------------------------------------------------------------------

    def _note_torn_tail(self) -> None:
        """Note the whole batches, and the damage, in the torn tail that a start will cut off."""
        walk = self._log.walked
        assert walk is not None
        file = self._log.file_named(walk.place)
        if file.header is None:
            return
        frame_check = FrameCheck()
        batches = 0

        def on_batch(batch: WalBatch) -> None:
            nonlocal batches
            batches += 1
            list(frame_check.batch(batch))

        resume_point = ResumePoint(walk.offset, walk.ordinal, walk.chain)
        for damaged_range in find_damage(self._data_dir.fs, file, resume_point, walk.remains_end, on_batch):
            if damaged_range.frame is not None:
                topic, seq, phrase = self._record(damaged_range.frame)
                phrase = phrase if topic is None else f', seq {seq} of topic "{topic}"'
                where = f"at offset {damaged_range.frame.offset} of {file.name}"
                self._verdict.notes.append(f"in the torn tail, {where}: {damaged_range.frame.what}{phrase}")
        if batches:
            self._verdict.notes.append(
                f"the torn tail contains {plural(batches, 'whole batch', 'whole batches')} with "
                f"{plural(frame_check.records, 'record')}, which a start cuts off"
            )

    def _note_cut_remains(self) -> None:
        """Note the bytes that earlier starts cut off in files before the last."""
        walk = self._log.walked
        if walk is None:
            return
        for file in walk.files:
            name = file.wal_file.name
            remains = self._log.remains_bytes(file.wal_file, file.end) if name != walk.place else 0
            if remains:
                cut = f"{plural(remains, 'byte')} at offset {file.end} of {name}"
                self._verdict.notes.append(f"an earlier start cut off {cut}, which are never read")

    def _note_misplaced(self) -> None:
        for topic in self._loaded.state.topics.values():
            owner = self._data_dir.placement.shard_of(topic.topic_id)
            if owner != self._shard:
                self._verdict.misplaced.append(topic.name)
                belongs = f"it belongs to shard {owner}, where a server looks for it"
                self._verdict.notes.append(f'topic "{topic.name}" is in this shard, but {belongs}')

    def _add(self, finding: Finding) -> None:
        self._verdict.problems.append(finding)


def _frame_of(batch: WalBatch, ordinal: int) -> Complaint:
    """Return the offset, topic and seq of the frame with this ordinal, without a message."""
    at = batch.start
    for _ in range(ordinal - batch.first_ordinal):
        at += LEN_BYTES + U32.unpack_from(batch.buffer, at)[0]
    _, _, _, topic_id, seq = HEADER.unpack_from(batch.buffer, at)[:5]
    return Complaint(batch.offset + at - batch.start, "", topic_id, seq)


def _missing_frames(walk: Walk) -> str:
    """Return a phrase about missing frames, by the first ordinal of the next file, or ""."""
    later = next((file for file in walk.beyond if file.header is not None), None)
    if later is None or later.first_ordinal <= walk.ordinal:
        return ""
    gap = f"the frames of ordinals {walk.ordinal} to {later.first_ordinal - 1} are missing"
    return f": {gap}, and {later.name} is the next file"


def _refusal(reason: str) -> str:
    return f"Synced data follows, so a server does not start this shard: {reason}"
