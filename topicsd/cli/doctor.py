"""`topicsd doctor DIR`: the findings of a check, their severity, and the repair.

Without --apply nothing is written and no lock is taken. With --apply the command holds the locks of the data
directory and of the shard, so that it never runs at the same time as a server.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import msgspec

from shared.ipc.placement import Placement, PlacementDamaged, PlacementError
from shared.runtime.clock import Clock, SystemClock
from topicsd.cli.command import Command, write_json
from topicsd.cli.progress import Progress
from topicsd.cli.verify import finding_text, stored_bytes
from topicsd.disk.access import os_error_reason
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.key_file import key_file_problem
from topicsd.disk.layout import Layout, LayoutDamaged, LayoutError, doctor_command, lock_path, rebuild_advice
from topicsd.disk.placement_file import read_placement
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.offline.check.finding import MEANS, MEANS_STOPPED, Finding, Level
from topicsd.offline.command_error import EXIT_ERROR, EXIT_OK, EXIT_PROBLEM, CommandError
from topicsd.offline.data_dir import DataDir, add_directory, data_dir_of, layout_of
from topicsd.offline.repair.cold_segments import GIVE_UP_FLAG
from topicsd.offline.repair.diagnosis import Diagnosis, diagnose
from topicsd.offline.repair.layout import LayoutRefused, derive_layout, write_derived
from topicsd.offline.repair.placement import PlacementRefused, derive_placement, write_derived_placement
from topicsd.offline.repair.plan import REVIVE_FLAG, Consent, Plan, RepairStep, plan_repair
from topicsd.offline.repair.repair import Repair, RepairFailed
from topicsd.offline.table import escape_unprintable, facts, path_text, plural

DESCRIPTION = f"""\
Check everything in a data directory, as `verify` does, and report how severe each problem is and whether a
server can start.

--repair also shows what a repair would do, and what data it would lose. --repair --apply performs it: damaged
bytes are copied to quarantine/, intact data is kept, and readers receive a report of the lost seqs. A lost
LAYOUT.json or PLACEMENT.json is rebuilt from the shards. A repair is refused while a server runs. It deletes
nothing, and can be run again after an interruption. Copy the directory first if you can.

When the deletes of a segment are unknown, a repair leaves the shard unchanged, unless {REVIVE_FLAG} allows
deleted records to come back. Missing cold segments are left alone, since their directory may not be mounted,
unless {GIVE_UP_FLAG} says that they are lost.
"""

NAME_WIDTH = 10


class ShardDoctorReport(msgspec.Struct, kw_only=True):
    shard: int
    path: str
    in_use_by: int | None
    starts: bool
    why_not: str
    """Why a server does not start the shard; empty when it does."""
    snapshot: int | None
    findings: list[Finding]
    notes: list[str]
    plan: list[RepairStep]
    loses: list[str]
    """The data that the repair gives up, in words."""
    refused: list[str]
    """The steps that the repair refuses, and why."""
    misplaced: list[str]
    """The topics in this shard that PLACEMENT.json gives to another shard."""
    repaired: bool = False


class FileDoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about a file of the whole directory that is missing, damaged or wrong."""

    problem: str
    plan: list[RepairStep]
    risk: str
    repaired: bool
    stops: bool = True
    """Whether a server refuses to start because of it."""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of the command."""

    directory: str
    is_fine: bool
    layout: FileDoctorReport | None
    """None when LAYOUT.json is undamaged."""
    placement: FileDoctorReport | None
    """None when PLACEMENT.json says where every topic is."""
    keys: FileDoctorReport | None
    """None when KEYS.json is undamaged, or absent."""
    shards: list[ShardDoctorReport]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--repair", action="store_true", help="show what a repair would do; writes nothing")
    parser.add_argument("--apply", action="store_true", help="with --repair: apply the repair")
    parser.add_argument(
        REVIVE_FLAG,
        action="store_true",
        help="keep a segment whose deletes are unknown; its deleted records become live again",
    )
    parser.add_argument(
        GIVE_UP_FLAG,
        action="store_true",
        help="treat missing cold segments as lost; check first that the cold directory is mounted",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    if args.apply and not args.repair:
        raise CommandError("--apply: must be used with --repair; run --repair alone first to see its plan")
    progress, clock = Progress(), SystemClock()
    consent = Consent(args.revive_deleted, args.give_up_cold)
    fs = ReadOnlyFs(RealFs(), progress.read)
    layout, layout_report = _open_layout(args, fs)
    placement, placement_problem = _open_placement(args.directory, fs, layout)
    data_dir = data_dir_of(args, fs, layout, placement)
    progress.begin(sum(stored_bytes(data_dir, shard) for shard in data_dir.shards))
    shards = []
    for shard in data_dir.shards:
        progress.label = f"shard {shard:02d}"
        if args.apply:
            with _locked(RealFs(), lock_path(data_dir.path), data_dir.paths(shard).lock):
                shards.append(_repaired(data_dir, shard, clock, consent))
        else:
            diagnosis, plan = _planned(data_dir, shard, clock, consent)
            shards.append(_shard_report(diagnosis, plan))
    progress.label = "placement"
    placement_report = None
    if placement_problem or any(one.misplaced for one in shards):
        placement_report = _placement_report(data_dir, placement_problem, clock, args.apply)
    progress.clear()
    keys_report = _keys_report(fs, args.directory)
    files = [one for one in (layout_report, placement_report, keys_report) if one is not None]
    is_fine = all(one.starts and not one.findings for one in shards) and all(one.repaired for one in files)
    report = DoctorReport(
        directory=path_text(data_dir.path),
        is_fine=is_fine,
        layout=layout_report,
        placement=placement_report,
        keys=keys_report,
        shards=shards,
    )
    if args.json:
        write_json(report)
    else:
        print(*_text(report, args), sep="\n")
    return EXIT_OK if is_fine else EXIT_PROBLEM


def _open_layout(args: argparse.Namespace, fs: Fs) -> tuple[Layout, FileDoctorReport | None]:
    """Return the layout, and the answer about LAYOUT.json when that is lost.

    With --apply a lost LAYOUT.json is written from the shards.
    """
    path: str = args.directory
    try:
        return layout_of(fs, path), None
    except LayoutDamaged as error:
        problem = str(error).removesuffix(rebuild_advice(path))
    except LayoutError as error:
        raise CommandError(str(error), EXIT_PROBLEM) from None
    try:
        derived = derive_layout(fs, path)
    except LayoutRefused as refused:
        raise CommandError(f"{problem}; it cannot be rebuilt: {refused}", EXIT_PROBLEM) from None
    if args.apply:
        with _locked(RealFs(), lock_path(path)):
            write_derived(RealFs(), path, derived.layout)
    plan = [RepairStep("layout", derived.step)]
    return derived.layout, FileDoctorReport(
        problem=problem, plan=plan, risk=derived.risk, repaired=args.apply
    )


def _open_placement(path: str, fs: Fs, layout: Layout) -> tuple[Placement, str]:
    """Return the placement, or the rule and the sentence that says why PLACEMENT.json cannot be read."""
    try:
        return read_placement(fs, path, layout.shards), ""
    except PlacementDamaged as error:
        return Placement(layout.shards), str(error)
    except PlacementError as error:
        raise CommandError(str(error), EXIT_PROBLEM) from None


def _placement_report(
    data_dir: DataDir, problem: str, clock: Clock, is_applied: bool
) -> FileDoctorReport | None:
    """Return the answer about PLACEMENT.json, which is damaged if there is a `problem`; write it if applied.

    The shards are repaired before, since a topic of a shard that does not load would be left out.
    """
    is_damaged = bool(problem)
    with _locked(RealFs(), lock_path(data_dir.path)) if is_applied else nullcontext():
        try:
            derived = derive_placement(data_dir, clock, is_damaged)
        except PlacementRefused as refused:
            message = f"{problem or 'topics are misplaced'}; it cannot be rebuilt: {refused}"
            return FileDoctorReport(problem=message, plan=[], risk="", repaired=False, stops=is_damaged)
        if derived is None:
            return None
        if is_applied:
            write_derived_placement(RealFs(), data_dir.path, derived.placement, is_damaged)
    return FileDoctorReport(
        problem=problem or derived.problem,
        plan=[RepairStep("placement", derived.step)],
        risk="a topic that was moved and then deleted is created again where the rule places it",
        repaired=is_applied,
        stops=is_damaged,
    )


def _keys_report(fs: Fs, path: str) -> FileDoctorReport | None:
    """Return the answer about KEYS.json, which nothing else can rebuild."""
    problem = key_file_problem(fs, path)
    return FileDoctorReport(problem=problem, plan=[], risk="", repaired=False) if problem else None


def _planned(data_dir: DataDir, shard: int, clock: Clock, consent: Consent) -> tuple[Diagnosis, Plan]:
    try:
        diagnosis = diagnose(data_dir, shard, clock)
        return diagnosis, plan_repair(data_dir, shard, clock, diagnosis, consent)
    except OSError as error:
        where = path_text(str(error.filename or data_dir.paths(shard).root))
        raise CommandError(f"{where}: cannot be read: {os_error_reason(error)}") from error


def _repaired(data_dir: DataDir, shard: int, clock: Clock, consent: Consent) -> ShardDoctorReport:
    data_dir = data_dir._replace(is_held=True)
    before, plan = _planned(data_dir, shard, clock, consent)
    if not plan.steps:
        return _shard_report(before, plan)
    try:
        Repair(RealFs(), data_dir, shard, clock, plan).run()
    except (RepairFailed, OSError) as error:
        message = f"shard {shard:02d}: repair failed: {error}; fix the cause and run the command again"
        raise CommandError(message, EXIT_ERROR) from error
    after, remaining = _planned(data_dir, shard, clock, consent)
    report = _shard_report(after, remaining)
    report.plan, report.loses, report.repaired = plan.steps, plan.loses, True
    return report


@contextmanager
def _locked(fs: Fs, *locks: str) -> Iterator[None]:
    """Hold the locks that a server takes, so that no server can start at the same time."""
    acquired: list[DirLock] = []
    try:
        for path in locks:
            try:
                acquired.append(DirLock(fs, path))
            except DirectoryInUse:
                owner = fs.lock_owner(path)
                holder = "another process" if owner is None else f"process {owner}"
                raise CommandError(f"{path}: locked by {holder}; stop the server first") from None
        yield
    finally:
        for lock in reversed(acquired):
            lock.release()


def _shard_report(diagnosis: Diagnosis, plan: Plan) -> ShardDoctorReport:
    return ShardDoctorReport(
        shard=diagnosis.verdict.shard,
        path=path_text(diagnosis.verdict.path),
        in_use_by=diagnosis.in_use_by,
        starts=not diagnosis.why_not,
        why_not=diagnosis.why_not,
        snapshot=diagnosis.starts_from,
        findings=diagnosis.findings,
        notes=diagnosis.verdict.notes,
        plan=plan.steps,
        loses=plan.loses,
        refused=plan.refused,
        misplaced=diagnosis.verdict.misplaced,
    )


def _text(report: DoctorReport, args: argparse.Namespace) -> list[str]:
    files = [one for one in (report.layout, report.placement, report.keys) if one is not None]
    lines = [line for one in files for line in _file_text(one, args)]
    for shard in report.shards:
        lines += _shard_text(shard, args)
    if report.is_fine:
        return [*lines, "all is well: nothing to repair" if not args.apply else "all is well"]
    findings = [one for shard in report.shards for one in shard.findings]
    problem_count = len(findings) + sum(not one.repaired for one in files)
    starts = not files and all(shard.starts for shard in report.shards)
    if starts and all(one.level is Level.HARMLESS for one in findings):
        count = plural(problem_count, "harmless finding")
        lines.append(f"{count}: no data is lost; a server can start, and rebuilds what it needs")
    else:
        lines.append(f"{plural(problem_count, 'problem')} found")
    has_repair = any(one.plan for one in files) or any(shard.plan for shard in report.shards)
    if has_repair and not args.apply:
        command = f"{doctor_command(report.directory)} --repair"
        lines.append(
            f"Nothing was changed. To apply the repair above: {command} --apply"
            if args.repair
            else f"To see what a repair would do and lose: {command}"
        )
    return lines


def _file_text(file: FileDoctorReport, args: argparse.Namespace) -> list[str]:
    level = Level.STOPS if file.stops else Level.LOSS
    rows = [("" if file.repaired else level.value.upper(), escape_unprintable(file.problem))]
    if args.repair:
        done = "done" if file.repaired else "repair"
        rows += [
            (done, escape_unprintable(f"{number}. {step.what}")) for number, step in enumerate(file.plan, 1)
        ]
        rows += [("check", file.risk)] if file.risk else []
    return ["data directory", *facts(rows, name_width=NAME_WIDTH), ""]


def _shard_text(shard: ShardDoctorReport, args: argparse.Namespace) -> list[str]:
    origin = "" if shard.snapshot is None else f" from snapshot {shard.snapshot} and the log after it"
    start = f"a server can start it{origin}" if shard.starts else f"cannot start: {shard.why_not}"
    rows = [("start", escape_unprintable(start))]
    if shard.in_use_by is not None:
        rows.append(("in use", f"process {shard.in_use_by} is using it; these results may be out of date"))
    for level in reversed(Level):
        findings = [one for one in shard.findings if one.level is level]
        if findings:
            rows.append((level.value.upper(), MEANS[level] if shard.starts else MEANS_STOPPED[level]))
            rows += [("", finding_text(one)) for one in findings]
    rows += [("note", escape_unprintable(note)) for note in shard.notes]
    if args.repair:
        rows += _plan_rows(shard)
    return [f"shard {shard.shard:02d}  {shard.path}", *facts(rows, name_width=NAME_WIDTH), ""]


def _plan_rows(shard: ShardDoctorReport) -> list[tuple[str, str]]:
    done = "done" if shard.repaired else "repair"
    rows = [(done, escape_unprintable(f"{number}. {step.what}")) for number, step in enumerate(shard.plan, 1)]
    rows += [("lost", escape_unprintable(lost)) for lost in shard.loses]
    rows += [("CANNOT", escape_unprintable(refused)) for refused in shard.refused]
    return rows


COMMAND = Command(
    name="doctor",
    summary="report problems and their severity; repair them with --repair --apply",
    description=DESCRIPTION,
    example="  topicsd doctor ./topics-data\n  topicsd doctor ./topics-data --shard 1 --repair --apply",
    add_arguments=add_arguments,
    run=run,
)
