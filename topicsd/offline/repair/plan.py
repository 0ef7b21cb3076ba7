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
from topicsd.offline.loaded_shard import Basis, LoadedShard, segment_files
from topicsd.offline.repair.cold_segments import out_of_reach
from topicsd.offline.repair.diagnosis import Candidate, Diagnosis
from topicsd.offline.repair.salvage import Gap, Lost, Salvage, file_bytes_max, heads_are_known
from topicsd.offline.repair.topic import Action, SegmentMend, TopicMend, mend_topic
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


class Step(msgspec.Struct, frozen=True):
    """One step of a repair: a short code and a sentence."""

    action: str
    what: str


class Plan(msgspec.Struct, kw_only=True):
    """The plan of a repair: the actions for `Repair`, and their description for the user."""

    basis: Candidate | None = None
    steps: list[Step] = []
    loses: list[str] = []
    """The data that is lost for good, in words."""
    refused: list[str] = []
    """The repairs that are refused, and why."""
    mends: list[TopicMend] = []
    rebuilds: list[SegmentFacts] = []
    """The segments of which only the index or the tags are rebuilt."""
    salvages: bool = False
    writes_snapshot: bool = False
    damaged_snapshots: list[int] = []
    writes_manifest: bool = False

    def add(self, action: str, what: str) -> None:
        self.steps.append(Step(action, what))


def plan_repair(data_dir: DataDir, shard: int, clock: Clock, found: Diagnosis, consent: Consent) -> Plan:
    """Return the plan of a repair; `refused` lists the faults that it leaves."""
    plan = Plan(basis=found.basis)
    if found.basis is None:
        plan.refused.append(found.why_no_basis)
        return plan
    plan.salvages = bool(found.basis.log_problem)
    plan.damaged_snapshots = found.damaged_snapshots
    _plan_basis(plan, found, found.basis)
    away, why_away = out_of_reach(data_dir, shard, found.basis)
    if away and not consent.gives_up_cold:
        plan.refused.append(why_away)
        if plan.salvages or any(facts.in_dead or facts.entry.tier != COLD for facts in away):
            # A salvage applies deletes by tag and so needs the tags and dead sets of all segments. And a new
            # snapshot would keep recording as hot the segments that the basis records as hot, so that no file
            # would say that they are cold.
            return Plan(basis=plan.basis, refused=plan.refused)
        left = {facts.name for facts in away}
        wrong = [facts for facts in found.basis.facts if facts.name not in left]
    else:
        wrong = found.basis.facts
    _plan_segments(plan, data_dir, shard, found.basis, wrong, consent.revives)
    unknown = [] if consent.revives else found.basis.unknown_deletes
    for one in unknown:
        plan.refused.append(
            f"{one.name.key(DEAD)}: {one.in_dead}. What was deleted of seqs {one.entry.first_seq} to "
            f"{one.entry.last_seq} cannot be known any more. Restore that file from a backup, or take the "
            f"segment with everything in it alive again: {REVIVE_FLAG}"
        )
    if unknown:
        # A partial repair would leave a shard that does not start.
        return Plan(basis=plan.basis, refused=plan.refused)
    if plan.salvages:
        _plan_log(plan, data_dir, shard, clock, found.basis)
    has_change = plan.salvages or any(mend.changes_entry for mend in plan.mends)
    is_used = found.basis.snapshot is None or found.basis.snapshot.head.number == found.starts_from
    has_newer = any(number > (found.starts_from or 0) for number in plan.damaged_snapshots)
    has_basis = found.basis.snapshot is not None
    plan.writes_snapshot = has_change or not is_used or (has_newer and has_basis)
    if plan.writes_snapshot:
        plan.add("snapshot", "write a new snapshot that says all of this; the shard starts from it")
    in_manifest = any(one.file == "MANIFEST.json" and one.level is Level.HARMLESS for one in found.findings)
    plan.writes_manifest = plan.writes_snapshot or (in_manifest and has_basis)
    if plan.writes_manifest:
        plan.add("manifest", "write MANIFEST.json again, for readers from outside")
    for number in plan.damaged_snapshots:
        plan.add("quarantine", f"move {snapshot_name(number)}, which no start can use, to quarantine/")
    return plan


def _plan_basis(plan: Plan, found: Diagnosis, basis: Candidate) -> None:
    if basis.is_from_manifest:
        plan.add("basis", "go on from MANIFEST.json, since no snapshot is good")
        plan.loses.append(
            "settings of topics but for type, durability and ttl_ms: they are the defaults, set them again"
        )
        plan.loses.append("idempotency keys: a write that is sent again is taken again")
    elif basis.snapshot is not None and basis.snapshot.head.number != found.starts_from:
        number = basis.snapshot.head.number
        plan.add("basis", f"go on from snapshot {number}: the log behind it says what the newer one does not")


def _plan_segments(
    plan: Plan, data_dir: DataDir, shard: int, basis: Candidate, wrong: list[SegmentFacts], revives: bool
) -> None:
    """Plan the repair of the segments in `wrong`; all others are unchanged."""
    by_topic: dict[tuple[int, int], list[SegmentFacts]] = defaultdict(list)
    for facts in wrong:
        by_topic[facts.name.topic_id, facts.name.epoch].append(facts)
    files = segment_files(data_dir, shard)
    with closing(files):
        for topic in basis.snapshot.topics if basis.snapshot is not None else ():
            found = by_topic.get((topic.topic_id, topic.epoch))
            if not found:
                continue
            topic_id, epoch = topic.topic_id, topic.epoch

            def marks(entry: SegmentEntry, topic_id: int = topic_id, epoch: int = epoch) -> bytearray | None:
                name = SegmentName(topic_id, epoch, entry.first_seq, entry.generation)
                return SegmentCheck(files, data_dir.identity(shard), name, entry).marks()

            mend = mend_topic(topic, found, revives, marks)
            plan.mends.append(mend)
            for one in mend.segments.values():
                _plan_segment(plan, one, mend)
            for first, last in mend.lost:
                plan.loses.append(_lost_words(Lost(topic.name, first, last)))


def _plan_segment(plan: Plan, one: SegmentMend, mend: TopicMend) -> None:
    facts, name = one.facts, one.facts.name
    file, where = name.key(DATA), f'topic "{mend.topic.name}"'
    if one.action is Action.REWRITE:
        plan.add("quarantine", f"copy the damaged bytes of {file} to quarantine/")
        plan.add("rewrite", f"write the good records of {file} ({where}) as a new generation beside it")
    elif one.action is Action.DROP:
        plan.add("drop", f"go on without {file} ({where}), of which nothing alive can be read")
    elif one.action is Action.RECOUNT:
        if facts.in_dead:
            plan.add("revive", f"take {file} ({where}) with what was deleted of it alive again")
            plan.loses.append(
                f"deletes of {where}, seqs {facts.entry.first_seq} to {facts.entry.last_seq}: "
                "those records can be read again"
            )
        else:
            plan.add("count", f"count {file} ({where}) again")
    elif not facts.in_dead:
        for suffix, what in ((INDEX, facts.in_index), (TAGS, facts.in_tags)):
            if what:
                plan.add(
                    "rebuild", f"keep a copy of {name.key(suffix)} in quarantine/ and make it from .data"
                )
    if one.action in (Action.RECOUNT, Action.LEAVE) and (facts.in_index or facts.in_tags):
        plan.rebuilds.append(facts)


def _plan_log(plan: Plan, data_dir: DataDir, shard: int, clock: Clock, basis: Candidate) -> None:
    with closing(LoadedShard(data_dir, shard, clock, Basis(basis.snapshot, [], ""))) as loaded:
        salvage = Salvage(data_dir.fs, loaded.state, basis.snapshot)
        log = loaded.log
        salvage.run(log.files, log.current, file_bytes_max(log.past + log.files))
        salvage.finish(heads_are_known(data_dir.fs, log.paths, log.files, log.current))
    for gap in salvage.gaps:
        plan.add("quarantine", _gap_words(gap))
    plan.add("salvage", "move every record of the log that is good into segments")
    plan.add("log", "begin a new log behind the old one, whose files stay until a checkpoint drops them")
    frames = sum(gap.frames_max for gap in salvage.gaps)
    if frames:
        plan.loses.append(
            f"{plural(len(salvage.gaps), 'damaged range')} of the log, at most {plural(frames, 'frame')}: "
            "records, settings, deletes and keys, if there were any"
        )
    for lost in salvage.lost[:_SHOWN_MAX]:
        plan.loses.append(_lost_words(lost))
    if len(salvage.lost) > _SHOWN_MAX:
        plan.loses.append(f"and {plural(len(salvage.lost) - _SHOWN_MAX, 'range')} of seqs of other topics")
    if salvage.unnamed_records:
        count = plural(salvage.unnamed_records, "record")
        plan.loses.append(f"{count} of topics whose creation is damaged, so that nothing names them")


def _gap_words(gap: Gap) -> str:
    if gap.end <= gap.offset:
        return f"nothing of {gap.file} can be kept: {gap.what}"
    size = plural(gap.end - gap.offset, "byte")
    return f"copy {size} of {gap.file} from offset {gap.offset} on to quarantine/: {gap.what}"


def _lost_words(lost: Lost) -> str:
    if lost.is_bound:
        count = plural(lost.last - lost.first + 1, "record")
        return (
            f'topic "{lost.topic}": at most {count} after seq {lost.first - 1}. How many there were is not '
            f"known, and no seq is used twice: its seqs continue at {lost.last + 1}, and readers get a "
            "tombstone for the range"
        )
    if lost.first == lost.last:
        return f'seq {lost.first} of topic "{lost.topic}": readers are told that it is lost'
    return f'seqs {lost.first} to {lost.last} of topic "{lost.topic}": readers are told that they are lost'
