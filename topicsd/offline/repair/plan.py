"""The plan of a repair of one shard: its steps and the data that it loses.

Planning writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import NamedTuple

import msgspec

from shared.runtime.clock import Clock
from topicsd.disk.layout import snapshot_name
from topicsd.offline.check.finding import Level
from topicsd.offline.check.segment_check import SegmentCheck, SegmentFacts
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import ChosenSnapshot, LoadedShard, segment_files
from topicsd.offline.repair.cold_segments import missing_cold
from topicsd.offline.repair.diagnosis import Candidate, Diagnosis
from topicsd.offline.repair.salvage import Gap, LostSpan, Salvage, file_bytes_max, heads_are_known
from topicsd.offline.repair.topic import Action, SegmentRepair, TopicRepair, repair_topic
from topicsd.offline.table import plural
from topicsd.segment.entry import COLD, DATA, DEAD, INDEX, TAGS, SegmentEntry, SegmentName

REVIVE_FLAG = "--revive-deleted"
_SHOWN_MAX = 20


class Consent(NamedTuple):
    """The losses to which the user has consented."""

    revives: bool
    """Deletes that are no longer known may be undone."""
    gives_up_cold: bool
    """Missing cold segments may be given up."""


class RepairStep(msgspec.Struct, frozen=True):
    """One step of a repair: a short code and a sentence."""

    action: str
    what: str


class Plan(msgspec.Struct, kw_only=True):
    """The plan of a repair: the actions for `Repair`, and their description for the user."""

    basis: Candidate | None = None
    steps: list[RepairStep] = []
    loses: list[str] = []
    """The data that is lost for good, in words."""
    refused: list[str] = []
    """The repairs that are refused, and why."""
    repairs: list[TopicRepair] = []
    rebuilds: list[SegmentFacts] = []
    """The segments of which only the index or the tags are rebuilt."""
    salvages: bool = False
    writes_snapshot: bool = False
    damaged_snapshots: list[int] = []
    writes_manifest: bool = False

    def add(self, action: str, what: str) -> None:
        self.steps.append(RepairStep(action, what))


def plan_repair(data_dir: DataDir, shard: int, clock: Clock, diagnosis: Diagnosis, consent: Consent) -> Plan:
    """Return the plan of a repair; `refused` lists the faults that it leaves."""
    plan = Plan(basis=diagnosis.basis)
    if diagnosis.basis is None:
        plan.refused.append(diagnosis.why_no_basis)
        return plan
    plan.salvages = bool(diagnosis.basis.log_problem)
    plan.damaged_snapshots = diagnosis.damaged_snapshots
    _plan_basis(plan, diagnosis, diagnosis.basis)
    missing, why_missing = missing_cold(data_dir, shard, diagnosis.basis)
    if missing and not consent.gives_up_cold:
        plan.refused.append(why_missing)
        if plan.salvages or any(facts.in_dead or facts.entry.tier != COLD for facts in missing):
            # A salvage applies deletes by tag and so needs the tags and dead sets of all segments. And a new
            # snapshot would keep recording as hot the segments that the basis records as hot, so that no file
            # would say that they are cold.
            return Plan(basis=plan.basis, refused=plan.refused)
        missing_names = {facts.name for facts in missing}
        faults = [facts for facts in diagnosis.basis.facts if facts.name not in missing_names]
    else:
        faults = diagnosis.basis.facts
    _plan_segments(plan, data_dir, shard, diagnosis.basis, faults, consent.revives)
    unknown = [] if consent.revives else diagnosis.basis.unknown_deletes
    for one in unknown:
        plan.refused.append(
            f"{one.name.key(DEAD)}: {one.in_dead}. The deletes of seqs {one.entry.first_seq} to "
            f"{one.entry.last_seq} are unknown. Restore the file from a backup, or make all records of the "
            f"segment live again: {REVIVE_FLAG}"
        )
    if unknown:
        # A partial repair would leave a shard that does not start.
        return Plan(basis=plan.basis, refused=plan.refused)
    if plan.salvages:
        _plan_log(plan, data_dir, shard, clock, diagnosis.basis)
    has_change = plan.salvages or any(repair.changes_entry for repair in plan.repairs)
    is_used = (
        diagnosis.basis.snapshot is None or diagnosis.basis.snapshot.head.number == diagnosis.starts_from
    )
    has_newer = any(number > (diagnosis.starts_from or 0) for number in plan.damaged_snapshots)
    has_basis = diagnosis.basis.snapshot is not None
    plan.writes_snapshot = has_change or not is_used or (has_newer and has_basis)
    if plan.writes_snapshot:
        plan.add("snapshot", "write a new snapshot with these changes; the shard starts from it")
    in_manifest = any(
        one.file == "MANIFEST.json" and one.level is Level.HARMLESS for one in diagnosis.findings
    )
    plan.writes_manifest = plan.writes_snapshot or (in_manifest and has_basis)
    if plan.writes_manifest:
        plan.add("manifest", "write MANIFEST.json again, for outside readers")
    for number in plan.damaged_snapshots:
        plan.add("quarantine", f"move {snapshot_name(number)}, which a start cannot use, to quarantine/")
    return plan


def _plan_basis(plan: Plan, diagnosis: Diagnosis, basis: Candidate) -> None:
    if basis.is_from_manifest:
        plan.add("basis", "start from MANIFEST.json, since no snapshot is good")
        plan.loses.append(
            "settings of topics, except type, durability, ttl_ms, caps and discard: they become the "
            "defaults; set them again"
        )
        plan.loses.append("idempotency keys: a repeated write is applied again")
    elif basis.snapshot is not None and basis.snapshot.head.number != diagnosis.starts_from:
        number = basis.snapshot.head.number
        plan.add("basis", f"start from snapshot {number}: the log after it has what the newer snapshot lacks")


def _plan_segments(
    plan: Plan, data_dir: DataDir, shard: int, basis: Candidate, faults: list[SegmentFacts], revives: bool
) -> None:
    """Plan the repair of the segments in `faults`; all others are unchanged."""
    by_topic: dict[tuple[int, int], list[SegmentFacts]] = defaultdict(list)
    for facts in faults:
        by_topic[facts.name.topic_id, facts.name.epoch].append(facts)
    files = segment_files(data_dir, shard)
    with closing(files):
        for topic in basis.snapshot.topics if basis.snapshot is not None else ():
            topic_faults = by_topic.get((topic.topic_id, topic.epoch))
            if not topic_faults:
                continue
            topic_id, epoch = topic.topic_id, topic.epoch

            def marks(entry: SegmentEntry, topic_id: int = topic_id, epoch: int = epoch) -> bytearray | None:
                name = SegmentName(topic_id, epoch, entry.first_seq, entry.generation)
                return SegmentCheck(files, name, entry).marks()

            repair = repair_topic(topic, topic_faults, revives, marks)
            plan.repairs.append(repair)
            for one in repair.segments.values():
                _plan_segment(plan, one, repair)
            for first, last in repair.lost:
                plan.loses.append(_lost_text(LostSpan(topic.name, first, last)))


def _plan_segment(plan: Plan, one: SegmentRepair, repair: TopicRepair) -> None:
    facts, name = one.facts, one.facts.name
    file, where = name.key(DATA), f'topic "{repair.topic.name}"'
    if one.action is Action.REWRITE:
        plan.add("quarantine", f"copy the damaged bytes of {file} to quarantine/")
        plan.add("rewrite", f"write the good records of {file} ({where}) as a new generation beside it")
    elif one.action is Action.DROP:
        plan.add("drop", f"drop {file} ({where}), of which no live record can be read")
    elif one.action is Action.RECOUNT:
        if facts.in_dead:
            plan.add("revive", f"make the deleted records of {file} ({where}) live again")
            plan.loses.append(
                f"deletes of {where}, seqs {facts.entry.first_seq} to {facts.entry.last_seq}: "
                "readers get those records again"
            )
        else:
            plan.add("count", f"count the records of {file} ({where}) again")
    elif not facts.in_dead:
        for suffix, what in ((INDEX, facts.in_index), (TAGS, facts.in_tags)):
            if what:
                plan.add("rebuild", f"copy {name.key(suffix)} to quarantine/ and rebuild it from .data")
    if one.action in (Action.RECOUNT, Action.LEAVE) and (facts.in_index or facts.in_tags):
        plan.rebuilds.append(facts)


def _plan_log(plan: Plan, data_dir: DataDir, shard: int, clock: Clock, basis: Candidate) -> None:
    with closing(LoadedShard(data_dir, shard, clock, ChosenSnapshot(basis.snapshot, [], ""))) as loaded:
        salvage = Salvage(data_dir.fs, loaded.state, basis.snapshot)
        log = loaded.log
        salvage.run(log.files, log.current, file_bytes_max(log.past + log.files))
        salvage.finish(heads_are_known(data_dir.fs, log.paths, log.files, log.current))
    for gap in salvage.gaps:
        plan.add("quarantine", _gap_text(gap))
    plan.add("salvage", "write every good record of the log into segments")
    plan.add("log", "begin a new log after the old one, whose files stay until a checkpoint drops them")
    frames = sum(gap.frames_max for gap in salvage.gaps)
    if frames:
        plan.loses.append(
            f"{plural(len(salvage.gaps), 'damaged range')} of the log, at most {plural(frames, 'frame')}: "
            "any records, settings, deletes and keys in them"
        )
    for lost in salvage.lost[:_SHOWN_MAX]:
        plan.loses.append(_lost_text(lost))
    if len(salvage.lost) > _SHOWN_MAX:
        plan.loses.append(f"and {plural(len(salvage.lost) - _SHOWN_MAX, 'more range')} of seqs")
    for raised in salvage.raised_heads[:_SHOWN_MAX]:
        plan.loses.append(
            f'head of topic "{raised.topic}", which is ephemeral: the log may lack its last ceiling, and no '
            f"seq is used twice, so its seqs continue at {raised.head + 1}"
        )
    if len(salvage.raised_heads) > _SHOWN_MAX:
        plan.loses.append(
            f"heads of {plural(len(salvage.raised_heads) - _SHOWN_MAX, 'more ephemeral topic')}"
        )
    if salvage.unnamed_records:
        count = plural(salvage.unnamed_records, "record")
        plan.loses.append(f"{count} of topics whose names are lost with their creation")


def _gap_text(gap: Gap) -> str:
    if gap.end <= gap.offset:
        return f"skip {gap.file}, of which no byte can be copied: {gap.what}"
    size = plural(gap.end - gap.offset, "byte")
    return f"copy {size} of {gap.file} from offset {gap.offset} on to quarantine/: {gap.what}"


def _lost_text(lost: LostSpan) -> str:
    if lost.is_bound:
        count = plural(lost.last - lost.first + 1, "record")
        return (
            f'topic "{lost.topic}": at most {count} after seq {lost.first - 1}. The exact number is unknown, '
            f"and no seq is used twice: its seqs continue at {lost.last + 1}, and readers get a tombstone "
            "for the range"
        )
    if lost.first == lost.last:
        return f'seq {lost.first} of topic "{lost.topic}": readers get a tombstone'
    return f'seqs {lost.first} to {lost.last} of topic "{lost.topic}": readers get a tombstone for the range'
