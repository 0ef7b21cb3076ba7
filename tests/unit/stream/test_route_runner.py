from __future__ import annotations

from errno import ENOSPC
from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.stage.route_shards import RouteShards
from topicsd.engine.routes.route import delete_route
from topicsd.engine.routes.stamp import HOPS_MAX
from topicsd.engine.routes.step import SKIPPED_MAX
from topicsd.stream.feed import GATHER_SECONDS
from topicsd.stream.route_runner import CHUNK_RECORDS_MAX

SHARDS = [1, 3]
ENDS: list[Any] = [OneShard.restart, OneShard.kill, OneShard.reboot]


def stage(shards: int = 1, *topics: str, **settings: Any) -> RouteShards:
    routes = RouteShards(shards, **settings)
    for topic in topics or ("a", "e"):
        routes.owner(topic).put(topic)
    return routes


def total(routes: RouteShards, name: str = "r") -> int:
    route = routes.route(name)
    assert route is not None
    return route.forwarded_total


@pytest.mark.parametrize("shards", SHARDS)
def test_new_records_are_copied_unchanged(shards: int) -> None:
    routes = stage(shards)
    routes.append("a", 1, 2)
    routes.put_route("r", "a", "e")
    data = b'{"z": 1.0, "a": [1e400, 12345678901234567890123]}'
    routes.append("a", record(data, "tag-\u00e4", "n", {"k": [1, {}]}), record(b"null", node="m"))
    routes.pass_time(100)
    first, second = routes.owner("e").read("e").records
    assert (first.seq, first.data, first.tag, first.node) == (1, data, "tag-\u00e4".encode(), b"n")
    assert (first.meta, second.data, second.node, second.meta) == (b'{"k":[1,{}]}', b"null", b"m", None)
    assert total(routes) == 2


@pytest.mark.parametrize("shards", SHARDS)
def test_a_route_from_the_start_copies_existing_records(shards: int) -> None:
    routes = stage(shards)
    routes.append("a", *range(1, 1001))
    routes.owner("a").delete("a", before_seq=501)
    routes.put_route("r", "a", "e", is_from_start=True)
    routes.append("a", 1001)
    routes.pass_time(200)
    assert routes.data("e") == list(range(501, 1002))
    assert routes.owner("e").read("e").tombstone is None


def test_a_route_selects_records_by_tag_and_drops_fields() -> None:
    routes = stage(1, "a", "e", "g", "d")
    routes.put_route("exact", "a", "e", tags=["tag", "Eq", "x"], keeps_node=False)
    routes.put_route("glob", "a", "g", tags=["tag", "Glob", "x*"], keeps_tag=False)
    routes.put_route("all", "a", "d")
    routes.append("a", record(1, "x", "n"), record(2, "xy", "n"), record(3, "y"), record(4))
    routes.settle()
    one = routes.shards[0]
    assert [(r.data, r.tag, r.node) for r in one.read("e").records] == [(b"1", b"x", b"")]
    assert [(r.data, r.tag, r.node) for r in one.read("g").records] == [(b"1", b"", b"n"), (b"2", b"", b"n")]
    assert routes.data("d") == [1, 2, 3, 4]
    assert [total(routes, name) for name in ("exact", "glob", "all")] == [1, 2, 4]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shards", SHARDS)
def test_restarts_and_crashes_neither_lose_nor_duplicate_copies(shards: int, end: Any) -> None:
    rng = Random(f"{shards} {end.__name__}")
    routes = stage(shards, "a", "e", "g")
    routes.put_route("r", "a", "e")
    routes.put_route("s", "e", "g")
    for number in range(1, 101):
        routes.owner("a").send_append("a", number)
        for _ in range(rng.randint(0, 3)):
            routes.shards[rng.randrange(shards)].turn()
        if number % 20 == 0:
            routes.owner("a").settle()
            routes.end(rng.randrange(shards), end)
        if number % 30 == 0:
            routes.owner("e").shard.start_checkpoint()
    routes.pass_time(3000)
    assert routes.data("a") == routes.data("e") == routes.data("g") == list(range(1, 101))
    assert total(routes, "r") == total(routes, "s") == 100


def test_changed_options_apply_to_later_records() -> None:
    routes = stage()
    routes.put_route("r", "a", "e", tags=["tag", "Eq", "x"])
    routes.append("a", record(1, "x"), record(2, "y"))
    routes.put_route("r", "a", "e")
    routes.append("a", record(3, "y"))
    assert routes.data("e") == [1, 3]
    routes.end(0, OneShard.kill)
    routes.append("a", 4)
    assert routes.data("e") == [1, 3, 4]


def test_a_full_destination_delays_copies_and_skips_none() -> None:
    routes = stage()
    one = routes.shards[0]
    one.put("e", cap_records=5, discard="reject")
    routes.put_route("r", "a", "e")
    routes.append("a", *range(1, 21))
    routes.pass_time(5000)
    assert routes.data("e") == [1, 2, 3, 4, 5]
    copied = []
    for _ in range(20):
        copied += routes.data("e")
        one.delete("e", before_seq=1 << 40)
        routes.pass_time(1200)
    assert copied == list(range(1, 21))
    assert total(routes) == 20


def test_a_record_larger_than_the_cap_waits_until_the_cap_is_raised() -> None:
    routes = stage()
    one = routes.shards[0]
    one.put("e", cap_bytes=200, discard="reject")
    routes.put_route("r", "a", "e")
    routes.append("a", 1, record(b'"' + b"x" * 500 + b'"'), 3)
    routes.pass_time(5000)
    assert routes.data("e") == [1]
    one.put("e", cap_bytes=0)
    routes.pass_time(2000)
    assert one.state("e").count == 3


@pytest.mark.parametrize("shards", SHARDS)
def test_records_evicted_before_the_copy_are_reported_to_readers_of_the_destination(shards: int) -> None:
    routes = stage(shards)
    routes.owner("a").put("a", cap_records=10)
    routes.owner("e").put("e", cap_records=1000, discard="reject")
    routes.put_route("r", "a", "e")
    routes.append("a", 1, 2, 3)
    routes.pass_time(100)
    routes.owner("e").put("e", cap_records=3)
    routes.append("a", *range(4, 24))
    routes.pass_time(3000)
    routes.owner("e").put("e", cap_records=0)
    routes.pass_time(3000)
    owner = routes.owner("e")
    assert [int(one.data) for one in owner.read("e").records] == [1, 2, 3]
    answer = owner.read("e", 3)
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (4, 13)
    assert answer.tombstone.reason == "source_trim"
    assert [int(one.data) for one in answer.records] == list(range(14, 24))
    owner.kill()
    again = owner.read("e", 3)
    assert (again.tombstone, again.records) == (answer.tombstone, answer.records)


def test_deletes_are_not_copied() -> None:
    routes = stage()
    routes.put_route("r", "a", "e")
    routes.append("a", 1, 2, 3)
    routes.shards[0].delete("a", before_seq=3)
    routes.append("a", 4)
    assert routes.data("e") == [1, 2, 3, 4]
    assert routes.shards[0].read("e", 3).tombstone is None


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("is_created_again", [False, True])
def test_deleting_the_source_ends_the_route(shards: int, is_created_again: bool) -> None:
    routes = stage(shards)
    routes.put_route("r", "a", "e")
    routes.append("a", 1)
    routes.pass_time(100)
    if shards > 1:
        routes.cut_off(routes.number_of("a"))
    routes.owner("a").delete_topic("a")
    if is_created_again:
        routes.append("a", 2, 3)
    routes.pass_time(100)
    routes.reconnect()
    routes.pass_time(2000)
    assert routes.route("r") is None
    assert routes.data("e") == [1]
    routes.owner("e").kill()
    assert routes.owner("e").shard.state.routes == {}


def test_deleting_the_destination_ends_the_route() -> None:
    routes = stage()
    routes.put_route("r", "a", "e")
    routes.append("a", 1)
    routes.shards[0].send_append("a", 2)
    assert routes.shards[0].delete_topic("e").routes == ["r"]
    routes.append("e", 7)
    routes.append("a", 3)
    routes.pass_time(100)
    assert routes.data("e") == [7]
    routes.shards[0].kill()
    assert routes.data("e") == [7]


def test_a_route_waits_for_an_unavailable_source_shard() -> None:
    routes = stage(3)
    assert routes.number_of("a") != routes.number_of("e")
    routes.put_route("r", "a", "e")
    routes.append("a", 1)
    routes.pass_time(100)
    routes.cut_off(routes.number_of("a"))
    routes.append("a", 2)
    routes.pass_time(5000)
    assert routes.data("e") == [1]
    routes.reconnect()
    routes.pass_time(500)
    assert routes.data("e") == [1, 2]


def test_unsynced_records_of_another_shard_are_not_copied() -> None:
    routes = stage(3)
    source = routes.owner("a")
    routes.put_route("r", "a", "e")
    routes.append("a", 1)
    routes.pass_time(100)
    source.send_append("a", 2)
    for _ in range(20):
        source.loop.run_until_idle()
        routes.owner("e").settle()
    assert source.topic("a").head == 2, "the record is written and not synced"
    assert routes.data("e") == [1]
    routes.pass_time(100)
    assert routes.data("e") == [1, 2]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_route_resumes_after_a_crash_for_each_durability_class(durability: str) -> None:
    routes = stage()
    one = routes.shards[0]
    one.put("g", durability=durability)
    routes.put_route("r", "a", "g")
    routes.append("a", 1, 2)
    assert routes.data("g") == [1, 2]
    routes.end(0, OneShard.kill)
    routes.append("a", 3)
    routes.settle()
    assert routes.data("g") == ([3] if durability == "ephemeral" else [1, 2, 3])
    assert total(routes) == 3


def test_copies_in_a_cycle_end_after_the_maximum_number_of_hops() -> None:
    routes = stage()
    routes.put_route("there", "a", "e", may_cycle=True)
    routes.put_route("back", "e", "a", may_cycle=True)
    routes.append("a", record(7, meta={"k": 1}))
    assert len(routes.data("a")) + len(routes.data("e")) == HOPS_MAX + 1
    last = routes.shards[0].read("a", limit=100).records[-1].meta
    assert last is not None
    stamp = msgspec.json.decode(last)["_topics_router"]
    assert stamp == {"source": "e", "epoch": routes.shards[0].topic("e").epoch, "seq": 8, "hops": HOPS_MAX}


def test_an_exactly_once_route_created_again_does_not_duplicate_copies() -> None:
    routes = stage(1, "a", "e", "g")
    for dest, is_exactly_once in (("e", True), ("g", False)):
        routes.put_route(dest, "a", dest, is_exactly_once=is_exactly_once)
    routes.append("a", *range(1, 11))
    for dest, is_exactly_once in (("e", True), ("g", False)):
        routes.delete_route(dest)
        routes.shards[0].delete(dest, before_seq=4)
        routes.put_route(dest, "a", dest, is_exactly_once=is_exactly_once, is_from_start=True)
    routes.append("a", 11)
    routes.pass_time(100)
    assert routes.data("e") == [4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 11]
    assert routes.data("g") == [4, 5, 6, 7, 8, 9, 10, *range(1, 12)]
    records = routes.shards[0].read("e").records
    epoch = routes.shards[0].topic("a").epoch
    stamps = [msgspec.json.decode(one.meta or b"")["_topics_router"] for one in records]
    assert [(one["source"], one["epoch"], one["seq"]) for one in stamps] == [
        ("a", epoch, int(record.data)) for record in records
    ]


def test_the_position_after_skipped_records_is_stored() -> None:
    routes = stage()
    routes.put_route("r", "a", "e", tags=["tag", "Eq", "x"])
    before = routes.shards[0].shard.log.counters.frames
    many = SKIPPED_MAX + CHUNK_RECORDS_MAX
    for number in range(many):
        routes.shards[0].send_append("a", number)
    routes.settle()
    assert routes.shards[0].shard.log.counters.frames - before < many + 50
    routes.end(0, OneShard.kill)
    route = routes.shards[0].shard.state.routes["r"]
    assert route.seq >= SKIPPED_MAX
    routes.append("a", record(1, "x"))
    assert routes.data("e") == [1]


def test_jobs_are_copied_and_copies_are_jobs() -> None:
    routes = stage(1, "a")
    one = routes.shards[0]
    for queue in ("q", "w"):
        one.put(queue, type="queue")
    routes.put_route("into", "a", "q")
    routes.put_route("out", "q", "w")
    routes.append("a", 1, 2, 3)
    assert one.claimed("q", "n", 2) == [1, 2]
    one.ack("q", "n", 1)
    assert one.claimed("w", "n", 9) == [1, 2, 3]


def test_under_pressure_a_route_runs_one_band_below_its_destination() -> None:
    routes = stage()
    one = routes.shards[0]
    one.put("e", priority=400)
    routes.put_route("r", "a", "e")
    watch = one.shard.state.wake_queue
    watch.apply_pressure(0.0, is_paused=True)
    one.send_append("a", 1)
    one.loop.run_turn()
    one.loop.run_turn()
    routes.settle()
    assert routes.data("e") == [1], "the route waits for its turn, and gets it"
    one.put("e", priority=-10)
    routes.append("a", 2)
    assert routes.data("e") == [1], "a paused route copies nothing"
    watch.apply_pressure(0.0, is_paused=False)
    routes.settle()
    assert routes.data("e") == [1, 2]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_full_disk_delays_copies(durability: str) -> None:
    routes = stage()
    one = routes.shards[0]
    one.put("e", durability=durability)
    routes.put_route("r", "a", "e")
    routes.append("a", 1)
    fault = one.disk.fail("pwrite", nth=2, error=ENOSPC)
    routes.append("a", 2, 3)
    assert fault.fired == 1
    assert routes.data("e") == [1]
    routes.append("a", 4)
    routes.pass_time(10_000)
    assert routes.data("e") == [1, 2, 3, 4]
    assert total(routes) == 4
    routes.end(0, OneShard.kill)
    assert routes.data("e") == [1, 2, 3, 4]


def test_records_appended_within_the_gather_time_are_copied_together() -> None:
    routes = stage()
    routes.put_route("r", "a", "e")
    one = routes.shards[0]
    appends = [one.send_append("a", 1)]
    one.loop.run_until_idle()
    appends.append(one.send_append("a", 2, 3))
    one.loop.run_until_idle()
    assert all(one.has_answer for one in appends)
    assert one.topic("e").head == 0, "the append is answered before the copy"
    before = one.shard.log.counters.batches
    one.loop.advance(GATHER_SECONDS * 1000)
    assert routes.data("e") == [1, 2, 3]
    assert one.shard.log.counters.batches == before + 1


def test_a_route_deleted_while_it_gathers_leaves_no_waiter() -> None:
    routes = stage()
    routes.put_route("r", "a", "e")
    one = routes.shards[0]
    one.send_append("a", 1)
    one.loop.run_until_idle()
    delete_route(one.shard.state, "r", RecordedReply())
    routes.pass_time(100)
    assert one.topic("e").head in (0, 1)
    assert one.topic("a").waiters is None


def test_copies_leave_room_for_appends_in_the_commit_queue() -> None:
    dests = [f"d{number}" for number in range(20)]
    routes = stage(1, "a", *dests, max_waiting_bytes=64 << 10)
    one = routes.shards[0]
    for dest in dests:
        # Each copy has its own stamp, so it is written in full.
        routes.put_route(dest, "a", dest, is_exactly_once=True)
    routes.pass_time(200)
    one.send_append("a", *[b'"%b"' % (b"x" * 1000)] * 10)
    # No sync ends meanwhile.
    one.loop.advance(20)
    log = one.shard.log
    assert 16 << 10 < log.unsynced_bytes < 32 << 10
    append = one.send_append("a", 1)
    one.loop.run_until_idle()
    assert append.has_answer, "appends do not wait for the disk"
    assert not log.is_lagging
    routes.pass_time(10_000)
    assert {one.topic(dest).head for dest in dests} == {11}
    assert {total(routes, dest) for dest in dests} == {11}


def test_a_loss_that_a_full_disk_delays_is_reported_once() -> None:
    routes = stage()
    one = routes.shards[0]
    one.put("e", cap_records=1, discard="reject")
    one.put("a", cap_records=1)
    routes.put_route("r", "a", "e")
    for number in (1, 2, 3, 4):
        routes.append("a", number)
    one.disk.fail("pwrite", nth=2, error=ENOSPC)
    one.put("e", cap_records=0)
    routes.pass_time(10_000)
    answer = one.read("e", 1)
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (2, 3)
    assert [int(record.data) for record in answer.records] == [4]
    assert answer.head_seq == 4


def test_a_damaged_source_record_is_a_lost_range_of_the_destination() -> None:
    routes = stage(1, segment_max_events=2)
    one = routes.shards[0]
    one.put("e", cap_records=1, discard="reject")
    routes.put_route("r", "a", "e")
    for number in range(1, 7):
        routes.append("a", number)
    one.checkpoint()
    [path] = [path for path in one.disk.all_files() if path.endswith("seg-0000000000000003.data")]
    one.close()
    damaged = bytearray(one.disk.read_file(path))
    damaged[-1] ^= 1
    file = one.disk.open_write(path)
    one.disk.pwrite(file, bytes(damaged), 0)
    one.disk.close(file)
    routes.end(0, lambda shard: shard.open(one.disk))
    one.put("e", cap_records=0)
    routes.pass_time(5000)
    assert routes.data("e") == [1, 2, 3, 5, 6]
    answer = one.read("e", 3)
    assert answer.tombstone is not None
    assert answer.tombstone.reason == "source_trim"


def test_many_routes_resume_after_a_start() -> None:
    routes = stage()
    one = routes.shards[0]
    dests = [f"d{number}" for number in range(40)]
    for dest in dests:
        one.put(dest)
        routes.put_route(dest, "a", dest)
    routes.append("a", 1)
    routes.end(0, OneShard.kill)
    routes.append("a", 2)
    assert all(routes.data(dest) == [1, 2] for dest in dests)


class TickingClock(ManualClock):
    """A clock on which, if `ticks` is set, each read takes a tenth of a millisecond."""

    ticks = False

    def monotonic(self) -> float:
        self.advance_ns(100_000 if self.ticks else 0)
        return super().monotonic()


def test_many_lagging_routes_do_not_lengthen_a_turn_of_the_loop() -> None:
    clock = TickingClock()
    routes = RouteShards(1, clock=clock)
    one = routes.shards[0]
    dests = [f"d{number}" for number in range(60)]
    for topic in ("a", *dests):
        one.put(topic)
    for _ in range(4):
        routes.append("a", *range(CHUNK_RECORDS_MAX))
    for dest in dests:
        routes.send_put_route(RouteRule(dest, "a", dest, is_from_start=True))
    clock.ticks = True
    served_most = 0
    for _ in range(400):
        before = [one.topic(dest).next_seq for dest in dests]
        clock.advance(1)  # The clock is not read while all routes wait for a timer.
        one.turn()
        served = sum(one.topic(dest).next_seq != seq for dest, seq in zip(dests, before, strict=True))
        served_most = max(served_most, served)
    assert {one.topic(dest).head for dest in dests} == {4 * CHUNK_RECORDS_MAX}
    assert 1 < served_most <= 15
