"""`topicsd doctor DIR`: the findings of a check, their severity, and the repair.

Without --apply nothing is written and no lock is taken. With --apply the command holds the locks of the data
directory and of the shard, so that it never runs at the same time as a server.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from shared.runtime.clock import Clock, SystemClock
from topicsd.cli.command import Command
from topicsd.cli.json_document import write_json
from topicsd.cli.progress import Progress
from topicsd.cli.verify import finding_text, stored_bytes
from topicsd.disk.access import os_error_reason
from topicsd.disk.dir_lock import DirectoryInUse, DirLock
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import LayoutDamaged, LayoutError, doctor_command, lock_path
from topicsd.disk.read_only_fs import ReadOnlyFs
from topicsd.offline.check.finding import MEANS, MEANS_STOPPED, Finding, Level
from topicsd.offline.command_error import FINE, NOT_DONE, WRONG, CommandError
from topicsd.offline.data_dir import DataDir, add_directory, data_dir_of, layout_of
from topicsd.offline.repair.cold_segments import GIVE_UP_FLAG
from topicsd.offline.repair.diagnosis import Diagnosis, diagnose
from topicsd.offline.repair.layout import LayoutRefused, derive_layout, write_derived
from topicsd.offline.repair.plan import REVIVE_FLAG, Consent, Plan, Step, plan_repair
from topicsd.offline.repair.repair import Repair, RepairFailed
from topicsd.offline.table import facts, harmless, plural, readable

DESCRIPTION = f"""\
Check everything in a data directory, as `verify` does, and say how bad it is and whether a server would
start.

--repair also shows what a repair would do, and what is lost by it. --repair --apply does it: damaged bytes
are copied to quarantine/, what is good is kept, and readers are told which seqs are lost. A lost LAYOUT.json
is written again from the shards. It refuses while a server runs. Nothing is deleted, and it may be run again
after it was interrupted. Copy the directory first if you can.

When it is not known any more what was deleted from a segment, a repair leaves the shard alone, unless
{REVIVE_FLAG} says that deleted records may come back. Cold segments that are not there stay as they are,
since their directory may not be mounted, unless {GIVE_UP_FLAG} says that they are lost.
"""

NAME_WIDTH = 10


class ShardAnswer(msgspec.Struct, kw_only=True):
    shard: int
    path: str
    in_use_by: int | None
    starts: bool
    why_not: str
    """Why a server does not start the shard; empty when it does."""
    snapshot: int | None
    findings: list[Finding]
    notes: list[str]
    plan: list[Step]
    loses: list[str]
    """The data that the repair gives up, in words."""
    refused: list[str]
    """The steps that the repair refuses, and why."""
    repaired: bool = False


class LayoutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about a LAYOUT.json that is missing or damaged."""

    problem: str
    plan: list[Step]
    risk: str
    repaired: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of the command."""

    directory: str
    is_fine: bool
    layout: LayoutAnswer | None
    """None when LAYOUT.json is undamaged."""
    shards: list[ShardAnswer]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    parser.add_argument("--repair", action="store_true", help="show what a repair would do; writes nothing")
    parser.add_argument("--apply", action="store_true", help="with --repair: do it")
    parser.add_argument(
        REVIVE_FLAG,
        action="store_true",
        help="take a segment whose deletes are unknown, with the deleted records alive again",
    )
    parser.add_argument(
        GIVE_UP_FLAG,
        action="store_true",
        help="take cold segments that are not there as lost; first see that the cold directory is mounted",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(given: argparse.Namespace) -> int:
    if given.apply and not given.repair:
        raise CommandError("--apply goes with --repair; look at what --repair alone says first")
    progress, clock = Progress(), SystemClock()
    consent = Consent(given.revive_deleted, given.give_up_cold)
    data_dir, layout = _opened(given, ReadOnlyFs(RealFs(), progress.read))
    progress.begin(sum(stored_bytes(data_dir, shard) for shard in data_dir.shards))
    shards = []
    for shard in data_dir.shards:
        progress.label = f"shard {shard:02d}"
        if given.apply:
            with _locked(RealFs(), lock_path(data_dir.path), data_dir.paths(shard).lock):
                shards.append(_repaired(data_dir, shard, clock, consent))
        else:
            found, plan = _planned(data_dir, shard, clock, consent)
            shards.append(_answer(found, plan))
    progress.clear()
    is_fine = all(one.starts and not one.findings for one in shards)
    is_fine = is_fine and (layout is None or layout.repaired)
    answer = Answer(directory=readable(data_dir.path), is_fine=is_fine, layout=layout, shards=shards)
    if given.json:
        write_json(answer)
    else:
        print(*_text(answer, given), sep="\n")
    return FINE if is_fine else WRONG


def _opened(given: argparse.Namespace, fs: Fs) -> tuple[DataDir, LayoutAnswer | None]:
    """Return the data directory, and the answer about LAYOUT.json when that is lost.

    With --apply a lost LAYOUT.json is written from the shards.
    """
    path: str = given.directory
    try:
        return data_dir_of(given, fs, layout_of(fs, path)), None
    except LayoutDamaged as error:
        problem = str(error).partition(" To write it again")[0]
    except LayoutError as error:
        raise CommandError(str(error), WRONG) from None
    try:
        derived = derive_layout(fs, path)
    except LayoutRefused as refused:
        raise CommandError(f"{problem} It cannot be written again: {refused}", WRONG) from None
    data_dir = data_dir_of(given, fs, derived.layout)
    if given.apply:
        with _locked(RealFs(), lock_path(path)):
            write_derived(RealFs(), path, derived.layout)
    plan = [Step("layout", derived.step)]
    return data_dir, LayoutAnswer(problem=problem, plan=plan, risk=derived.risk, repaired=given.apply)


def _planned(data_dir: DataDir, shard: int, clock: Clock, consent: Consent) -> tuple[Diagnosis, Plan]:
    try:
        found = diagnose(data_dir, shard, clock)
        return found, plan_repair(data_dir, shard, clock, found, consent)
    except OSError as error:
        where = readable(str(error.filename or data_dir.paths(shard).root))
        raise CommandError(f"{where} cannot be read: {os_error_reason(error)}") from error


def _repaired(data_dir: DataDir, shard: int, clock: Clock, consent: Consent) -> ShardAnswer:
    data_dir = data_dir._replace(is_held=True)
    before, plan = _planned(data_dir, shard, clock, consent)
    if not plan.steps:
        return _answer(before, plan)
    try:
        Repair(RealFs(), data_dir, shard, clock, plan).run()
    except (RepairFailed, OSError) as error:
        told = f"shard {shard:02d} could not be repaired; run it again when the cause is gone: {error}"
        raise CommandError(told, NOT_DONE) from error
    after, left = _planned(data_dir, shard, clock, consent)
    answer = _answer(after, left)
    answer.plan, answer.loses, answer.repaired = plan.steps, plan.loses, True
    return answer


@contextmanager
def _locked(fs: Fs, *locks: str) -> Iterator[None]:
    """Hold the locks that a server takes, so that no server can start at the same time."""
    held: list[DirLock] = []
    try:
        for path in locks:
            try:
                held.append(DirLock(fs, path))
            except DirectoryInUse:
                owner = fs.lock_owner(path)
                who = "another process" if owner is None else f"process {owner}"
                raise CommandError(f"{path} is held by {who}: stop the server first") from None
        yield
    finally:
        for lock in reversed(held):
            lock.release()


def _answer(found: Diagnosis, plan: Plan) -> ShardAnswer:
    return ShardAnswer(
        shard=found.verdict.shard,
        path=readable(found.verdict.path),
        in_use_by=found.in_use_by,
        starts=not found.why_not,
        why_not=found.why_not,
        snapshot=found.starts_from,
        findings=found.findings,
        notes=found.verdict.notes,
        plan=plan.steps,
        loses=plan.loses,
        refused=plan.refused,
    )


def _text(answer: Answer, given: argparse.Namespace) -> list[str]:
    lines = [] if answer.layout is None else _layout_text(answer.layout, given)
    for shard in answer.shards:
        lines += _shard_text(shard, given)
    if answer.is_fine:
        return [*lines, "all is well: nothing to repair" if not given.apply else "all is well"]
    findings = [one for shard in answer.shards for one in shard.findings]
    wrong = len(findings) + (answer.layout is not None and not answer.layout.repaired)
    starts = answer.layout is None and all(shard.starts for shard in answer.shards)
    if starts and all(one.level is Level.HARMLESS for one in findings):
        found = plural(wrong, "harmless finding")
        lines.append(f"{found}: no data is lost; a server starts, and makes again what it needs")
    else:
        lines.append(f"{plural(wrong, 'problem')} found")
    can = answer.layout is not None or any(shard.plan for shard in answer.shards)
    if can and not given.apply:
        command = f"{doctor_command(answer.directory)} --repair"
        lines.append(
            f"Nothing was changed. To apply the repair above: {command} --apply"
            if given.repair
            else f"To see what a repair would do and lose: {command}"
        )
    return lines


def _layout_text(layout: LayoutAnswer, given: argparse.Namespace) -> list[str]:
    rows = [("" if layout.repaired else "STOPS", harmless(layout.problem))]
    if given.repair:
        done = "done" if layout.repaired else "repair"
        rows += [(done, harmless(f"{number}. {step.what}")) for number, step in enumerate(layout.plan, 1)]
        rows.append(("check", layout.risk))
    return ["data directory", *facts(rows, name_width=NAME_WIDTH), ""]


def _shard_text(shard: ShardAnswer, given: argparse.Namespace) -> list[str]:
    origin = "" if shard.snapshot is None else f", from snapshot {shard.snapshot} and the log behind it"
    start = f"a server starts it{origin}" if shard.starts else f"a server does not start it: {shard.why_not}"
    rows = [("start", harmless(start))]
    if shard.in_use_by is not None:
        rows.append(("in use", f"process {shard.in_use_by} holds it; what is said is of a moment ago"))
    for level in reversed(Level):
        found = [one for one in shard.findings if one.level is level]
        if found:
            rows.append((level.value.upper(), MEANS[level] if shard.starts else MEANS_STOPPED[level]))
            rows += [("", finding_text(one)) for one in found]
    rows += [("note", harmless(note)) for note in shard.notes]
    if given.repair:
        rows += _plan_rows(shard)
    return [f"shard {shard.shard:02d}  {shard.path}", *facts(rows, name_width=NAME_WIDTH), ""]


def _plan_rows(shard: ShardAnswer) -> list[tuple[str, str]]:
    done = "done" if shard.repaired else "repair"
    rows = [(done, harmless(f"{number}. {step.what}")) for number, step in enumerate(shard.plan, 1)]
    rows += [("lost", harmless(lost)) for lost in shard.loses]
    rows += [("CANNOT", harmless(refused)) for refused in shard.refused]
    return rows


COMMAND = Command(
    name="doctor",
    summary="say what is wrong and how bad it is, and repair it with --repair --apply",
    description=DESCRIPTION,
    example="  topicsd doctor ./topics-data\n  topicsd doctor ./topics-data --shard 1 --repair --apply",
    add_arguments=add_arguments,
    run=run,
)
