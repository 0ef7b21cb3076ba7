"""The diagnosis of one shard: its faults, the outcome of a start, and the basis of a repair.

The basis of a repair is the one that loses the least. These are tried in order:

1. The basis of a start: the newest good snapshot whose deletes are known, else the newest good snapshot, and
   the log after it; without a good snapshot the log alone.
2. The manifest, when no snapshot is good and the log does not reach back to its start. The manifest lacks
   some settings of topics, all idempotency keys and all ceilings.
"""

from __future__ import annotations

from contextlib import closing

import msgspec

from shared.runtime.clock import Clock
from topicsd.disk.layout import names_in, parse_snapshot_name
from topicsd.engine.checkpoint.manifest import ManifestDamage, read_manifest
from topicsd.engine.checkpoint.snapshot_files import MEDIA_ERRORS, read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot, SnapshotDamage
from topicsd.log.file_header import UnknownVersion
from topicsd.log.walk import FIRST_ORDINAL
from topicsd.offline.check.finding import Finding, Level
from topicsd.offline.check.segment_check import SegmentFacts
from topicsd.offline.check.shard_check import ShardCheck, ShardVerdict
from topicsd.offline.data_dir import DataDir
from topicsd.offline.loaded_shard import ChosenSnapshot, LoadedShard
from topicsd.offline.manifest_snapshot import snapshot_of
from topicsd.offline.shard_log import End


class Candidate(msgspec.Struct, kw_only=True):
    """A possible basis of a repair, with its faults."""

    snapshot: Snapshot | None
    is_from_manifest: bool = False
    facts: list[SegmentFacts] = []
    log_problem: str = ""
    """Why the log after the snapshot cannot be read to its end; empty when it can."""
    log_end: End = End.UNREADABLE
    is_foreign: bool = False
    """Whether the log belongs to another shard or to a newer program."""

    @property
    def unknown_deletes(self) -> list[SegmentFacts]:
        return [facts for facts in self.facts if facts.in_dead]


class Diagnosis(msgspec.Struct, kw_only=True):
    """The faults of one shard and the basis of a repair."""

    verdict: ShardVerdict
    in_use_by: int | None
    why_not: str
    """Why a server would not start the shard; empty when it would."""
    starts_from: int | None
    """The number of the snapshot that a start loads."""
    damaged_snapshots: list[int]
    """The numbers of the snapshots that no start can use."""
    basis: Candidate | None
    why_no_basis: str = ""

    @property
    def findings(self) -> list[Finding]:
        return self.verdict.problems


def diagnose(data_dir: DataDir, shard: int, clock: Clock) -> Diagnosis:
    """Check a shard and choose the basis of its repair."""
    paths = data_dir.paths(shard)
    verdict = ShardVerdict(shard=shard, path=paths.root)
    with closing(LoadedShard(data_dir, shard, clock)) as loaded:
        check = ShardCheck(loaded, verdict)
        check.run()
        chosen, owner = loaded.chosen, loaded.log.owner
        candidate = _candidate(loaded, check, chosen.snapshot)
        why_not = loaded.problem or candidate.log_problem
    stopping = [finding for finding in verdict.problems if finding.level is Level.STOPS]
    if stopping:
        why_not = f"{stopping[0].file}: {stopping[0].what}" if stopping[0].file else stopping[0].what
    if why_not and chosen.snapshot is None:
        verdict.problems[:] = map(_as_stopping, verdict.problems)
    diagnosis = Diagnosis(
        verdict=verdict,
        in_use_by=owner,
        why_not=why_not,
        starts_from=None if chosen.snapshot is None else chosen.snapshot.head.number,
        damaged_snapshots=sorted({*_damaged_snapshots(data_dir, shard), *chosen.skipped}, reverse=True),
        basis=candidate,
    )
    if chosen.problem or candidate.is_foreign:
        diagnosis.basis, diagnosis.why_no_basis = None, chosen.problem or candidate.log_problem
    elif chosen.snapshot is None and _is_log_truncated(data_dir, shard):
        diagnosis.basis = _from_manifest(data_dir, shard, clock)
        if diagnosis.basis is None:
            diagnosis.why_no_basis = (
                "no snapshot is good, the log does not reach back to its start, and MANIFEST.json is "
                "unusable: no file names the topics. Restore the shard from a backup"
            )
    return diagnosis


def _as_stopping(finding: Finding) -> Finding:
    """Return a finding about a snapshot with level STOPS; other findings are unchanged.

    A bad snapshot is harmless only while another snapshot, or the whole log, can replace it.
    """
    is_snapshot = finding.file is not None and parse_snapshot_name(finding.file) is not None
    return msgspec.structs.replace(finding, level=Level.STOPS) if is_snapshot else finding


def _candidate(loaded: LoadedShard, check: ShardCheck, snapshot: Snapshot | None) -> Candidate:
    log = loaded.log
    problem = log.problem
    if not problem and log.walked is not None and check.refused:
        problem = check.refused
    return Candidate(
        snapshot=snapshot,
        facts=check.checkpoint.facts,
        log_problem=problem,
        log_end=log.end,
        is_foreign=log.is_foreign(loaded.identity),
    )


def _damaged_snapshots(data_dir: DataDir, shard: int) -> list[int]:
    fs, paths = data_dir.fs, data_dir.paths(shard)
    numbers = []
    for number in snapshot_numbers(fs, paths):
        try:
            read_snapshot(fs, paths, number)
        except SnapshotDamage:
            numbers.append(number)
        except (FileNotFoundError, UnknownVersion):
            continue
    return numbers


def _candidate_from(data_dir: DataDir, shard: int, clock: Clock, snapshot: Snapshot) -> Candidate:
    """Check the shard with this snapshot as the basis."""
    with closing(LoadedShard(data_dir, shard, clock, ChosenSnapshot(snapshot, [], ""))) as loaded:
        check = ShardCheck(loaded, ShardVerdict(shard=shard, path=""))
        check.run()
        return _candidate(loaded, check, snapshot)


def _is_log_truncated(data_dir: DataDir, shard: int) -> bool:
    """Whether the log no longer begins at ordinal 1, so that it lacks earlier frames."""
    fs, paths = data_dir.fs, data_dir.paths(shard)
    names = [name for name in names_in(fs, paths.wal) if name.startswith("wal-")]
    if names:
        return min(names) != f"wal-{FIRST_ORDINAL:016d}.log"
    return bool(snapshot_numbers(fs, paths))


def _from_manifest(data_dir: DataDir, shard: int, clock: Clock) -> Candidate | None:
    """Return the manifest as a basis, or None when it is missing, damaged or of another shard."""
    try:
        manifest = read_manifest(data_dir.fs, data_dir.paths(shard))
    except (FileNotFoundError, ManifestDamage, UnknownVersion):
        return None
    except OSError as error:
        if error.errno not in MEDIA_ERRORS:
            raise
        return None
    identity = data_dir.identity(shard)
    if (bytes.fromhex(manifest.instance), manifest.shard) != identity:
        return None
    candidate = _candidate_from(data_dir, shard, clock, snapshot_of(manifest, identity))
    candidate.is_from_manifest = True
    return candidate
