"""Copies by reference: the log holds a record once, and its unchanged copies refer to it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.shard.one_shard import OneShard, record
from tests.harness.shard.shard_driver import PATHS
from tests.harness.stage.route_shards import RouteShards
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.routes.copies import REFERRED_FILES_MAX
from topicsd.log.control_frame import ForwardCursor, decode_control
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.frame import LEN_BYTES, FrameType, parse_frame
from topicsd.stream.feed import GATHER_SECONDS

LARGE = b'"%b"' % (b"x" * 10_000)


def stage(*dests: str, **settings: Any) -> tuple[RouteShards, OneShard]:
    routes = RouteShards(**settings)
    for name in ("a", *dests):
        routes.shards[0].put(name)
    for dest in dests:
        routes.put_route(f"to-{dest}", "a", dest)
    return routes, routes.shards[0]


def append(routes: RouteShards, topic: str, *records: Any) -> None:
    routes.shards[0].append(topic, *records)
    routes.settle()


def copies(one: OneShard, topic: str) -> list[bool]:
    """Return for each record in the tail whether it refers to the bytes of another."""
    flags = []
    for run in one.topic(topic).runs:
        if not isinstance(run, TailRun):
            continue
        flags += [run.is_copy(at) for at in range(len(run.lengths))]
    return flags


def cursors(one: OneShard) -> list[ForwardCursor]:
    frames = []
    for path in one.wal_files():
        data, at = one.disk.read_file(path), FILE_HEADER_BYTES
        while any(data[at : at + LEN_BYTES]):
            frame = parse_frame(data, at, len(data))
            at += frame.size
            if frame.type == FrameType.FORWARD_CURSOR:
                control = decode_control(frame)
                assert isinstance(control, ForwardCursor)
                frames.append(control)
    return frames


def texts(one: OneShard, topic: str) -> list[Any]:
    records = one.read(topic, limit=10_000).records
    return [(one.seq, bytes(one.data), one.tag, one.meta) for one in records]


def check_unchanged_by(
    one: OneShard, routes: RouteShards, end: Callable[[OneShard], object], topic: str
) -> None:
    before = texts(one, topic)
    routes.end(0, end)
    routes.settle()
    assert texts(one, topic) == before


ENDS = [OneShard.kill, OneShard.reboot, OneShard.restart]


@pytest.mark.parametrize("end", ENDS)
def test_a_record_copied_to_many_topics_is_written_once(end: Callable[[OneShard], object]) -> None:
    dests = [f"d{number}" for number in range(20)]
    routes, one = stage(*dests)
    before = one.shard.log.batch.next_position
    append(routes, "a", record(LARGE, "tag", "node", {"k": 1}), record(LARGE))
    written = one.shard.log.batch.next_position - before
    assert 20_000 < written < 20_000 + 200 * len(dests)
    source = texts(one, "a")
    assert [one[2] for one in source] == [b"tag", b""]
    for dest in dests:
        assert texts(one, dest) == source
        assert copies(one, dest) == [True, True]
        assert one.topic(dest).live_bytes == one.topic("a").live_bytes
    routes.end(0, end)
    routes.settle()
    assert {str(texts(one, dest)) for dest in dests} == {str(source)}
    assert {one.delete(dest, tag="tag").deleted for dest in dests} == {1}


def test_a_copy_has_the_time_and_the_seq_of_its_own_topic() -> None:
    routes, one = stage("d")
    one.append("d", "own")
    routes.pass_time(5000)
    append(routes, "a", "first")
    (own, copy), (original,) = one.read("d").records, one.read("a").records
    assert (own.seq, copy.seq, original.seq) == (1, 2, 1)
    assert own.ts < original.ts <= copy.ts
    assert copies(one, "d") == [False, True]


@pytest.mark.parametrize("end", ENDS)
def test_a_page_holds_appended_records_and_copies(end: Callable[[OneShard], object]) -> None:
    routes, one = stage("d")
    for number in range(30):
        append(routes, "a", *[record(f"a{number}.{n}", f"t{n}") for n in range(number % 4 + 1)])
        append(routes, "d", record(f"d{number}", "own"))
    assert set(copies(one, "d")) == {False, True}
    assert [one.seq for one in one.read("d", limit=1000).records] == list(range(1, one.topic("d").head + 1))
    check_unchanged_by(one, routes, end, "d")
    one.checkpoint()
    check_unchanged_by(one, routes, OneShard.kill, "d")


def test_copies_of_copies_refer_to_the_first_original() -> None:
    routes, one = stage("b")
    for source, dest in (("b", "c"), ("c", "d")):
        one.put(dest)
        routes.put_route(f"to-{dest}", source, dest)
    append(routes, "a", LARGE, "small")
    routes.settle()
    assert copies(one, "d") == [True, True]
    (run,) = one.topic("d").runs
    assert isinstance(run, TailRun)
    assert run.bytes_positions == one.topic("a").run.frame_positions  # type: ignore[attr-defined]
    check_unchanged_by(one, routes, OneShard.kill, "d")
    routes.end(0, OneShard.restart)
    assert texts(one, "d") == texts(one, "a")


def test_filtered_records_are_referred_to_one_by_one() -> None:
    routes, one = stage()
    one.put("d")
    routes.put_route("r", "a", "d", tags=["tag", "Eq", "yes"])
    append(routes, "a", *[record(number, "yes" if number % 3 else "no") for number in range(20)])
    (cursor,) = [cursor for cursor in cursors(one) if cursor.count]
    assert (cursor.count, len(cursor.offsets), cursor.first_seq) == (13, 7, 1)
    assert copies(one, "d") == [True] * 13
    check_unchanged_by(one, routes, OneShard.kill, "d")


@pytest.mark.parametrize(
    "options", [{"keeps_tag": False}, {"keeps_node": False}, {"is_exactly_once": True}, {"may_cycle": True}]
)
def test_changed_copies_are_written_to_the_log(options: dict[str, bool]) -> None:
    routes, one = stage()
    one.put("d")
    routes.put_route("r", "a", "d", **options)
    append(routes, "a", record(1, "tag", "node"))
    assert copies(one, "d") == [False]
    assert [cursor.offsets for cursor in cursors(one) if cursor.count] == [[]]


@pytest.mark.parametrize("ends", ["a", "d"])
def test_copies_from_or_to_an_ephemeral_topic_are_not_references(ends: str) -> None:
    routes = RouteShards()
    one = routes.shards[0]
    for name in "ad":
        one.put(name, durability="ephemeral" if name == ends else "disk")
    routes.put_route("r", "a", "d")
    append(routes, "a", 1, 2)
    assert [bytes(cursor.data) for cursor in one.read("d").records] == [b"1", b"2"]
    assert [cursor.offsets for cursor in cursors(one) if cursor.count] == [[]]


def test_copies_survive_the_delete_of_their_source() -> None:
    routes, one = stage("d")
    append(routes, "a", "one", "two")
    one.delete_topic("a")
    routes.settle()
    copied = texts(one, "d")
    assert [data for _, data, _, _ in copied] == [b'"one"', b'"two"']
    for end in (OneShard.kill, OneShard.restart, OneShard.kill):
        routes.end(0, end)
        assert texts(one, "d") == copied


def test_records_older_than_a_checkpoint_or_a_start_are_written_again() -> None:
    routes, one = stage("d")
    one.send_append("a", "before")
    for between in (one.checkpoint, lambda: routes.end(0, OneShard.kill)):
        one.loop.run_turn()
        between()
        routes.settle()
        one.send_append("a", "after")
    routes.settle()
    assert {tuple(cursor.offsets) for cursor in cursors(one) if cursor.first_seq == 0 and cursor.count} == {
        ()
    }
    assert len(texts(one, "d")) == one.topic("a").head


def test_a_checkpoint_writes_each_copy_once() -> None:
    routes, one = stage("b", "d", segment_max_events=4)
    for number in range(10):
        append(routes, "a", record(number, f"t{number % 2}", "n", {"k": number}))
    before = {name: texts(one, name) for name in "abd"}
    one.checkpoint()
    assert isinstance(one.topic("d").runs[0], SealedRun)
    routes.end(0, OneShard.kill)
    assert {name: texts(one, name) for name in "abd"} == before
    for _ in range(2):
        append(routes, "a", "more")
        one.checkpoint()
    routes.end(0, OneShard.kill)
    assert [texts(one, name)[:10] for name in "abd"] == [before[name] for name in "abd"]
    assert one.delete("d", tag="t1").deleted == 5


def test_many_copies_start_a_checkpoint() -> None:
    dests = [f"d{number}" for number in range(30)]
    routes, one = stage(*dests, wal_file_bytes=1 << 18)
    append(routes, "a", LARGE, LARGE)
    routes.pass_time(200)
    assert one.shard.state.referred_bytes == 0
    assert one.shard.checkpoints.count == 1
    assert {len(texts(one, dest)) for dest in dests} == {2}


@pytest.mark.parametrize("is_after", [False, True])
def test_a_start_recovers_the_copies_made_around_a_checkpoint(is_after: bool) -> None:
    """Copies made after a checkpoint began do not refer to files that its snapshot drops."""
    reference_count = 0
    for turns in (*range(12), 20, 30, 40):
        for more in range(10, 200, 30):
            routes, one = source_in_the_first_file("a")
            route = partial(routes.send_put_route, RouteRule("r", "a", "d", is_from_start=True))
            steps = [route, one.shard.start_checkpoint]
            for step, count in zip(reversed(steps) if is_after else steps, (turns, more), strict=True):
                step()
                for _ in range(count):
                    one.turn()
            reference_count += any(cursor.offsets for cursor in cursors(one))
            routes.end(0, OneShard.kill)
            routes.pass_time(2000)
            if "r" in one.shard.state.routes:
                assert texts(one, "d") == texts(one, "a"), (turns, more)
    assert bool(reference_count) != is_after


def source_in_the_first_file(source: str) -> tuple[RouteShards, OneShard]:
    """Return a stage whose source has its records in the first file of the log, and nothing after it."""
    routes = RouteShards(wal_file_bytes=1 << 15)
    others = [f"t{number}" for number in range(6)]
    for name in ("d", source, *others):
        routes.shards[0].put(name, durability="fsync" if name == "d" else "disk")
    append(routes, source, *[b'"%b"' % (b"x" * 500)] * 40)
    for name in others:
        append(routes, name, LARGE)
    return routes, routes.shards[0]


@pytest.mark.parametrize("again", [False, True])
def test_referred_bytes_are_bounded_while_checkpoints_fail(again: bool) -> None:
    dests = [f"d{number}" for number in range(30)]
    routes, one = stage(*dests, wal_file_bytes=1 << 18)
    one.disk.fail("create", error=errno.ENOSPC, forever=True)
    if not again:
        one.checkpoint()
    bound = REFERRED_FILES_MAX << 18
    while one.shard.state.referred_bytes < bound:
        append(routes, "a", LARGE)
        routes.pass_time(10)
    before = one.shard.state.referred_bytes
    assert before < bound + 30 * 11_000
    if again:
        disk = one.disk.after_process_kill()
        routes.end(0, lambda one: one.open(disk))
        assert one.shard.state.referred_bytes == before
    append(routes, "a", "small")
    assert [copies(one, dest)[-1] for dest in dests] == [False] * 30
    append(routes, "a", LARGE)
    assert one.shard.state.referred_bytes == before
    one.disk.clear_faults()
    routes.pass_time(60_000)
    assert one.shard.state.referred_bytes == 0
    append(routes, "a", LARGE)
    assert [copies(one, dest)[-1] for dest in dests] == [True] * 30
    routes.pass_time(1000)
    for dest in dests:
        assert texts(one, dest) == texts(one, "a")


def test_many_copies_do_not_hasten_the_retry_of_a_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    routes, one = stage(*[f"d{number}" for number in range(30)], wal_file_bytes=1 << 18)
    one.disk.fail("create", error=errno.ENOSPC, forever=True)
    append(routes, "a", LARGE, LARGE)
    for _ in range(4):
        append(routes, "a", "more")
        routes.pass_time(1000)
    assert [one.message for one in caplog.records if "checkpoint: failed" in one.message] == [ANY]


def test_a_copy_is_durable_when_its_cursor_frame_is_synced() -> None:
    routes, one = stage("d")
    routes.pass_time(1000)
    one.send_append("a", "x" * 300, "y")
    one.loop.run_until_idle()
    one.loop.advance(GATHER_SECONDS * 1000)
    one.loop.run_until_idle()
    assert one.topic("d").head == 2
    state, dest = one.shard.state, one.topic("d")
    assert durable_seq(state, dest) == 0
    routes.pass_time(1000)
    assert durable_seq(state, dest) == 2
    routes.pass_time(10_000)
    assert dest.ceiling == 2, "everything is on the disk, so the next head is known"
    routes.end(0, OneShard.cut_power)
    assert len(texts(one, "d")) == 2


def test_a_cut_tail_loses_originals_and_copies_alike() -> None:
    for seed in range(20):
        routes, _ = stage("d")
        for number in range(6):
            append(routes, "a", number)
        routes.end(0, lambda one: one.cut_power(seed))  # noqa: B023
        routes.pass_time(2000)
        assert routes.data("d") == routes.data("a")


def test_damage_of_an_original_damages_its_copies() -> None:
    routes, one = stage("d")
    append(routes, "a", "one", "two", "three")
    file, at = one.topic("a").run.place_of(2, one.shard.state.files)
    one.disk.flip(f"/data/shards/00/wal/{file}", at + 50)
    assert one.seqs("d") == [1]
    refusal = one.refused_read("d", 1)
    assert (refusal.code, refusal.detail and refusal.detail["segment"]) == ("corrupt_segment", file)
    assert one.seqs("d", 2) == [3]
    one.checkpoint()
    routes.end(0, OneShard.kill)
    assert one.seqs("d") == [1]
    assert one.refused_read("d", 1).code == "corrupt_segment"
    assert one.seqs("d", 2) == [3]


def test_caps_and_jobs_see_copies_as_records() -> None:
    routes, one = stage()
    one.put("d", cap_records=3)
    one.put("q", type="queue", order_by="tag")
    for dest in "dq":
        routes.put_route(f"to-{dest}", "a", dest)
    for number in range(6):
        append(routes, "a", record(number, f"t{number % 2}"))
    for end in (OneShard.kill, OneShard.restart):
        assert one.seqs("d", 3) == [4, 5, 6]
        assert one.claimed("q", "n", 10, 1000) == [1, 2]
        routes.end(0, end)
        routes.pass_time(2000)
    assert one.state("d").earliest_seq == 4


def test_records_of_two_files_are_written() -> None:
    routes, one = stage("d", wal_file_bytes=1 << 16)
    for number in range(80):
        one.send_append("a", b"%0200d" % (number + 10**199), *[number] * 20)
        one.loop.run_turn()
    routes.settle()
    routes.pass_time(2000)
    assert one.wal_files()[-1] != PATHS.wal_file(1)
    assert routes.data("d") == routes.data("a")
    check_unchanged_by(one, routes, OneShard.kill, "d")


def test_copies_replay_unchanged_under_another_clock() -> None:
    routes, one = stage("d")
    append(routes, "a", "one")
    before = texts(one, "d")
    again = RouteShards(disk=one.disk.after_process_kill(), clock=ManualClock(1, 1.0))
    assert texts(again.shards[0], "d") == before
