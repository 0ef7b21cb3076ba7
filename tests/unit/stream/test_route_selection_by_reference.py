"""What a source of the shard holds as it is to be copied is in the log once: the copies say where."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest

from shared.contract.route_rule import ForwardRule
from tests.harness.forward_stage import ForwardStage
from tests.harness.manual_clock import ManualClock
from tests.harness.one_shard import PATHS, OneShard, record
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.routes.copies import REFERRED_FILES_MAX
from topicsd.log.control_frame import ForwardCursor, decode_control
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.frame import LEN_BYTES, FrameType, parse_frame
from topicsd.stream.feed import GATHER_SECONDS

LARGE = b'"%b"' % (b"x" * 10_000)


def stage(*dests: str, **settings: Any) -> tuple[ForwardStage, OneShard]:
    made = ForwardStage(**settings)
    for name in ("a", *dests):
        made.shards[0].put(name)
    for dest in dests:
        made.put_forward(f"to-{dest}", "a", dest)
    return made, made.shards[0]


def append(made: ForwardStage, topic: str, *records: Any) -> None:
    made.shards[0].append(topic, *records)
    made.settle()


def copies(one: OneShard, topic: str) -> list[bool]:
    """Of each record in the tail, whether it has the bytes of another."""
    found = []
    for run in one.topic(topic).runs:
        if not isinstance(run, TailRun):
            continue
        found += [run.is_copy(at) for at in range(len(run.lengths))]
    return found


def cursors(one: OneShard) -> list[ForwardCursor]:
    found = []
    for path in one.wal_files():
        data, at = one.disk.read_file(path), FILE_HEADER_BYTES
        while any(data[at : at + LEN_BYTES]):
            frame = parse_frame(data, at, len(data))
            at += frame.size
            if frame.type == FrameType.FORWARD_CURSOR:
                control = decode_control(frame)
                assert isinstance(control, ForwardCursor)
                found.append(control)
    return found


def texts(one: OneShard, topic: str) -> list[Any]:
    records = one.read(topic, limit=10_000).records
    return [(one.seq, bytes(one.data), one.tag, one.meta) for one in records]


def both_after(one: OneShard, made: ForwardStage, end: Callable[[OneShard], object], topic: str) -> None:
    before = texts(one, topic)
    made.end(0, end)
    made.settle()
    assert texts(one, topic) == before


ENDS = [OneShard.kill, OneShard.reboot, OneShard.restart]


@pytest.mark.parametrize("end", ENDS)
def test_what_goes_into_many_topics_is_written_once(end: Callable[[OneShard], object]) -> None:
    dests = [f"d{number}" for number in range(20)]
    made, one = stage(*dests)
    before = one.shard.log.batch.next_position
    append(made, "a", record(LARGE, "tag", "node", {"k": 1}), record(LARGE))
    written = one.shard.log.batch.next_position - before
    assert 20_000 < written < 20_000 + 200 * len(dests)
    source = texts(one, "a")
    assert [one[2] for one in source] == [b"tag", b""]
    for dest in dests:
        assert texts(one, dest) == source
        assert copies(one, dest) == [True, True]
        assert one.topic(dest).live_bytes == one.topic("a").live_bytes
    made.end(0, end)
    made.settle()
    assert {str(texts(one, dest)) for dest in dests} == {str(source)}
    assert {one.delete(dest, tag="tag").deleted for dest in dests} == {1}


def test_a_copy_has_the_time_and_the_seq_of_its_own_topic() -> None:
    made, one = stage("d")
    one.append("d", "own")
    made.pass_time(5000)
    append(made, "a", "first")
    (own, copy), (original,) = one.read("d").records, one.read("a").records
    assert (own.seq, copy.seq, original.seq) == (1, 2, 1)
    assert own.ts < original.ts <= copy.ts
    assert copies(one, "d") == [False, True]


@pytest.mark.parametrize("end", ENDS)
def test_own_records_and_copies_stand_in_one_page(end: Callable[[OneShard], object]) -> None:
    made, one = stage("d")
    for number in range(30):
        append(made, "a", *[record(f"a{number}.{n}", f"t{n}") for n in range(number % 4 + 1)])
        append(made, "d", record(f"d{number}", "own"))
    assert set(copies(one, "d")) == {False, True}
    assert [one.seq for one in one.read("d", limit=1000).records] == list(range(1, one.topic("d").head + 1))
    both_after(one, made, end, "d")
    one.checkpoint()
    both_after(one, made, OneShard.kill, "d")


def test_a_chain_leads_to_the_first_original() -> None:
    made, one = stage("b")
    for source, dest in (("b", "c"), ("c", "d")):
        one.put(dest)
        made.put_forward(f"to-{dest}", source, dest)
    append(made, "a", LARGE, "small")
    made.settle()
    assert copies(one, "d") == [True, True]
    (run,) = one.topic("d").runs
    assert isinstance(run, TailRun)
    assert run.places == one.topic("a").run.positions  # type: ignore[attr-defined]
    both_after(one, made, OneShard.kill, "d")
    made.end(0, OneShard.restart)
    assert texts(one, "d") == texts(one, "a")


def test_what_a_filter_takes_is_referred_to_one_by_one() -> None:
    made, one = stage()
    one.put("d")
    made.put_forward("r", "a", "d", tags=["tag", "Eq", "yes"])
    append(made, "a", *[record(number, "yes" if number % 3 else "no") for number in range(20)])
    (cursor,) = [found for found in cursors(one) if found.count]
    assert (cursor.count, len(cursor.offsets), cursor.first_seq) == (13, 7, 1)
    assert copies(one, "d") == [True] * 13
    both_after(one, made, OneShard.kill, "d")


@pytest.mark.parametrize(
    "options", [{"keeps_tag": False}, {"keeps_node": False}, {"is_exactly_once": True}, {"may_cycle": True}]
)
def test_what_is_changed_is_written(options: dict[str, bool]) -> None:
    made, one = stage()
    one.put("d")
    made.put_forward("r", "a", "d", **options)
    append(made, "a", record(1, "tag", "node"))
    assert copies(one, "d") == [False]
    assert [found.offsets for found in cursors(one) if found.count] == [[]]


@pytest.mark.parametrize("ends", ["a", "d"])
def test_who_keeps_nothing_in_the_log_is_not_referred_to(ends: str) -> None:
    made = ForwardStage()
    one = made.shards[0]
    for name in "ad":
        one.put(name, durability="ephemeral" if name == ends else "disk")
    made.put_forward("r", "a", "d")
    append(made, "a", 1, 2)
    assert [bytes(found.data) for found in one.read("d").records] == [b"1", b"2"]
    assert [found.offsets for found in cursors(one) if found.count] == [[]]


def test_a_source_that_is_gone_leaves_its_copies() -> None:
    made, one = stage("d")
    append(made, "a", "one", "two")
    one.delete_topic("a")
    made.settle()
    found = texts(one, "d")
    assert [data for _, data, _, _ in found] == [b'"one"', b'"two"']
    for end in (OneShard.kill, OneShard.restart, OneShard.kill):
        made.end(0, end)
        assert texts(one, "d") == found


def test_what_stands_in_front_of_a_checkpoint_or_of_a_start_is_written() -> None:
    made, one = stage("d")
    one.send_append("a", "before")
    for between in (one.checkpoint, lambda: made.end(0, OneShard.kill)):
        one.loop.run_turn()
        between()
        made.settle()
        one.send_append("a", "behind")
    made.settle()
    assert {tuple(found.offsets) for found in cursors(one) if found.first_seq == 0 and found.count} == {()}
    assert len(texts(one, "d")) == one.topic("a").head


def test_a_checkpoint_frames_it_once() -> None:
    made, one = stage("b", "d", segment_max_events=4)
    for number in range(10):
        append(made, "a", record(number, f"t{number % 2}", "n", {"k": number}))
    found = {name: texts(one, name) for name in "abd"}
    one.checkpoint()
    assert isinstance(one.topic("d").runs[0], SealedRun)
    made.end(0, OneShard.kill)
    assert {name: texts(one, name) for name in "abd"} == found
    for _ in range(2):
        append(made, "a", "more")
        one.checkpoint()
    made.end(0, OneShard.kill)
    assert [texts(one, name)[:10] for name in "abd"] == [found[name] for name in "abd"]
    assert one.delete("d", tag="t1").deleted == 5


def test_many_copies_are_reason_enough_for_a_checkpoint() -> None:
    dests = [f"d{number}" for number in range(30)]
    made, one = stage(*dests, wal_file_bytes=1 << 18)
    append(made, "a", LARGE, LARGE)
    made.pass_time(200)
    assert one.shard.state.referred_bytes == 0
    assert one.shard.checkpoints.count == 1
    assert {len(texts(one, dest)) for dest in dests} == {2}


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_start_has_what_was_copied_about_the_time_of_a_checkpoint(is_behind: bool) -> None:
    """What is copied when one has begun is in files that its snapshot lets go of, and is not referred to."""
    referred = 0
    for turns in (*range(12), 20, 30, 40):
        for more in range(10, 200, 30):
            made, one = many_files_behind("a")
            route = partial(made.send_put_forward, ForwardRule("r", "a", "d", is_from_start=True))
            steps = [route, one.shard.start_checkpoint]
            for step, count in zip(reversed(steps) if is_behind else steps, (turns, more), strict=True):
                step()
                for _ in range(count):
                    one.turn()
            referred += any(found.offsets for found in cursors(one))
            made.end(0, OneShard.kill)
            made.pass_time(2000)
            if "r" in one.shard.state.forwards:
                assert texts(one, "d") == texts(one, "a"), (turns, more)
    assert bool(referred) != is_behind


def many_files_behind(source: str) -> tuple[ForwardStage, OneShard]:
    """Its records stand in the first file of the log, and nothing else does from there on."""
    made = ForwardStage(wal_file_bytes=1 << 15)
    others = [f"t{number}" for number in range(6)]
    for name in ("d", source, *others):
        made.shards[0].put(name, durability="fsync" if name == "d" else "disk")
    append(made, source, *[b'"%b"' % (b"x" * 500)] * 40)
    for name in others:
        append(made, name, LARGE)
    return made, made.shards[0]


@pytest.mark.parametrize("again", [False, True])
def test_what_checkpoints_do_not_come_to_is_bounded_by_the_log(again: bool) -> None:
    dests = [f"d{number}" for number in range(30)]
    made, one = stage(*dests, wal_file_bytes=1 << 18)
    one.disk.fail("create", error=errno.ENOSPC, forever=True)
    if not again:
        one.checkpoint()
    bound = REFERRED_FILES_MAX << 18
    while one.shard.state.referred_bytes < bound:
        append(made, "a", LARGE)
        made.pass_time(10)
    before = one.shard.state.referred_bytes
    assert before < bound + 30 * 11_000
    if again:
        disk = one.disk.after_process_kill()
        made.end(0, lambda one: one.open(disk))
        assert one.shard.state.referred_bytes == before
    append(made, "a", "small")
    assert [copies(one, dest)[-1] for dest in dests] == [False] * 30
    append(made, "a", LARGE)
    assert one.shard.state.referred_bytes == before
    one.disk.clear_faults()
    made.pass_time(60_000)
    assert one.shard.state.referred_bytes == 0
    append(made, "a", LARGE)
    assert [copies(one, dest)[-1] for dest in dests] == [True] * 30
    made.pass_time(1000)
    for dest in dests:
        assert texts(one, dest) == texts(one, "a")


def test_many_copies_are_no_reason_to_try_again_sooner(caplog: pytest.LogCaptureFixture) -> None:
    made, one = stage(*[f"d{number}" for number in range(30)], wal_file_bytes=1 << 18)
    one.disk.fail("create", error=errno.ENOSPC, forever=True)
    append(made, "a", LARGE, LARGE)
    for _ in range(4):
        append(made, "a", "more")
        made.pass_time(1000)
    assert [one.message for one in caplog.records if "checkpoint: failed" in one.message] == [ANY]


def test_a_copy_is_durable_when_what_names_it_is() -> None:
    made, one = stage("d")
    made.pass_time(1000)
    one.send_append("a", "x" * 300, "y")
    one.loop.run_until_idle()
    one.loop.advance(GATHER_SECONDS * 1000)
    one.loop.run_until_idle()
    assert one.topic("d").head == 2
    state, dest = one.shard.state, one.topic("d")
    assert durable_seq(state, dest) == 0
    made.pass_time(1000)
    assert durable_seq(state, dest) == 2
    made.pass_time(10_000)
    assert dest.ceiling == 2, "it is all on the disk, so the next head is known"
    made.end(0, OneShard.cut_power)
    assert len(texts(one, "d")) == 2


def test_a_tail_that_is_cut_takes_originals_and_copies() -> None:
    for seed in range(20):
        made, _ = stage("d")
        for number in range(6):
            append(made, "a", number)
        made.end(0, lambda one: one.cut_power(seed))  # noqa: B023
        made.pass_time(2000)
        assert made.data("d") == made.data("a")


def test_a_damaged_original_is_damage_of_its_copies() -> None:
    made, one = stage("d")
    append(made, "a", "one", "two", "three")
    file, at = one.topic("a").run.place_of(2, one.shard.state.files)
    one.disk.flip(f"/data/shards/00/wal/{file}", at + 50)
    assert one.seqs("d") == [1]
    refusal = one.refused_read("d", 1)
    assert (refusal.code, refusal.detail and refusal.detail["segment"]) == ("corrupt_segment", file)
    assert one.seqs("d", 2) == [3]
    one.checkpoint()
    made.end(0, OneShard.kill)
    assert one.seqs("d") == [1]
    assert one.refused_read("d", 1).code == "corrupt_segment"
    assert one.seqs("d", 2) == [3]


def test_caps_and_jobs_see_copies_as_records() -> None:
    made, one = stage()
    one.put("d", cap_records=3)
    one.put("q", type="queue", order_by="tag")
    for dest in "dq":
        made.put_forward(f"to-{dest}", "a", dest)
    for number in range(6):
        append(made, "a", record(number, f"t{number % 2}"))
    for end in (OneShard.kill, OneShard.restart):
        assert one.seqs("d", 3) == [4, 5, 6]
        assert one.claimed("q", "n", 10, 1000) == [1, 2]
        made.end(0, end)
        made.pass_time(2000)
    assert one.state("d").earliest_seq == 4


def test_records_of_two_files_are_written() -> None:
    made, one = stage("d", wal_file_bytes=1 << 16)
    for number in range(80):
        one.send_append("a", b"%0200d" % (number + 10**199), *[number] * 20)
        one.loop.run_turn()
    made.settle()
    made.pass_time(2000)
    assert one.wal_files()[-1] != PATHS.wal_file(1)
    assert made.data("d") == made.data("a")
    both_after(one, made, OneShard.kill, "d")


def test_it_is_read_again_with_another_clock() -> None:
    made, one = stage("d")
    append(made, "a", "one")
    before = texts(one, "d")
    again = ForwardStage(disk=one.disk.after_process_kill(), clock=ManualClock(1, 1.0))
    assert texts(again.shards[0], "d") == before
