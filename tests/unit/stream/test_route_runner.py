from __future__ import annotations

from errno import ENOSPC
from random import Random
from typing import Any

import msgspec
import pytest

from shared.contract.route_rule import ForwardRule
from tests.harness.forward_stage import ForwardStage
from tests.harness.manual_clock import ManualClock
from tests.harness.one_shard import OneShard, Told, record
from topicsd.engine.routes.route import delete_forward
from topicsd.engine.routes.stamp import HOPS_MAX
from topicsd.engine.routes.step import SKIPPED_MAX
from topicsd.stream.feed import GATHER_SECONDS
from topicsd.stream.route_runner import CHUNK_RECORDS_MAX

SHARDS = [1, 3]
ENDS: list[Any] = [OneShard.restart, OneShard.kill, OneShard.reboot]


def stage(shards: int = 1, *topics: str, **settings: Any) -> ForwardStage:
    made = ForwardStage(shards, **settings)
    for topic in topics or ("a", "e"):
        made.owner(topic).put(topic)
    return made


def total(made: ForwardStage, name: str = "r") -> int:
    forward = made.forward(name)
    assert forward is not None
    return forward.forwarded_total


@pytest.mark.parametrize("shards", SHARDS)
def test_what_is_written_from_now_on_is_copied_as_it_is(shards: int) -> None:
    made = stage(shards)
    made.append("a", 1, 2)
    made.put_forward("r", "a", "e")
    data = b'{"z": 1.0, "a": [1e400, 12345678901234567890123]}'
    made.append("a", record(data, "tag-\u00e4", "n", {"k": [1, {}]}), record(b"null", node="m"))
    made.pass_time(100)
    first, second = made.owner("e").read("e").records
    assert (first.seq, first.data, first.tag, first.node) == (1, data, "tag-\u00e4".encode(), b"n")
    assert (first.meta, second.data, second.node, second.meta) == (b'{"k":[1,{}]}', b"null", b"m", None)
    assert total(made) == 2


@pytest.mark.parametrize("shards", SHARDS)
def test_from_the_earliest_takes_what_is_there(shards: int) -> None:
    made = stage(shards)
    made.append("a", *range(1, 1001))
    made.owner("a").delete("a", before_seq=501)
    made.put_forward("r", "a", "e", is_from_start=True)
    made.append("a", 1001)
    made.pass_time(200)
    assert made.data("e") == list(range(501, 1002))
    assert made.owner("e").read("e").tombstone is None


def test_a_rule_takes_what_it_is_to_take_and_drops_what_it_is_to_drop() -> None:
    made = stage(1, "a", "e", "g", "d")
    made.put_forward("exact", "a", "e", tags=["tag", "Eq", "x"], keeps_node=False)
    made.put_forward("glob", "a", "g", tags=["tag", "Glob", "x*"], keeps_tag=False)
    made.put_forward("all", "a", "d")
    made.append("a", record(1, "x", "n"), record(2, "xy", "n"), record(3, "y"), record(4))
    made.settle()
    one = made.shards[0]
    assert [(r.data, r.tag, r.node) for r in one.read("e").records] == [(b"1", b"x", b"")]
    assert [(r.data, r.tag, r.node) for r in one.read("g").records] == [(b"1", b"", b"n"), (b"2", b"", b"n")]
    assert made.data("d") == [1, 2, 3, 4]
    assert [total(made, name) for name in ("exact", "glob", "all")] == [1, 2, 4]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shards", SHARDS)
def test_nothing_is_lost_or_doubled_over_ends(shards: int, end: Any) -> None:
    rng = Random(f"{shards} {end.__name__}")
    made = stage(shards, "a", "e", "g")
    made.put_forward("r", "a", "e")
    made.put_forward("s", "e", "g")
    for number in range(1, 101):
        made.owner("a").send_append("a", number)
        for _ in range(rng.randint(0, 3)):
            made.shards[rng.randrange(shards)].turn()
        if number % 20 == 0:
            made.owner("a").settle()
            made.end(rng.randrange(shards), end)
        if number % 30 == 0:
            made.owner("e").shard.start_checkpoint()
    made.pass_time(3000)
    assert made.data("a") == made.data("e") == made.data("g") == list(range(1, 101))
    assert total(made, "r") == total(made, "s") == 100


def test_a_change_of_the_options_holds_for_what_comes() -> None:
    made = stage()
    made.put_forward("r", "a", "e", tags=["tag", "Eq", "x"])
    made.append("a", record(1, "x"), record(2, "y"))
    made.put_forward("r", "a", "e")
    made.append("a", record(3, "y"))
    assert made.data("e") == [1, 3]
    made.end(0, OneShard.kill)
    made.append("a", 4)
    assert made.data("e") == [1, 3, 4]


def test_a_destination_that_is_full_holds_it_up_and_nothing_is_passed_over() -> None:
    made = stage()
    one = made.shards[0]
    one.put("e", cap_records=5, discard="reject")
    made.put_forward("r", "a", "e")
    made.append("a", *range(1, 21))
    made.pass_time(5000)
    assert made.data("e") == [1, 2, 3, 4, 5]
    copied = []
    for _ in range(20):
        copied += made.data("e")
        one.delete("e", before_seq=1 << 40)
        made.pass_time(1200)
    assert copied == list(range(1, 21))
    assert total(made) == 20


def test_what_could_never_fit_is_waited_for_until_it_does() -> None:
    made = stage()
    one = made.shards[0]
    one.put("e", cap_bytes=200, discard="reject")
    made.put_forward("r", "a", "e")
    made.append("a", 1, record(b'"' + b"x" * 500 + b'"'), 3)
    made.pass_time(5000)
    assert made.data("e") == [1]
    one.put("e", cap_bytes=0)
    made.pass_time(2000)
    assert one.state("e").count == 3


@pytest.mark.parametrize("shards", SHARDS)
def test_what_the_source_trimmed_first_is_told_to_readers_of_the_destination(shards: int) -> None:
    made = stage(shards)
    made.owner("a").put("a", cap_records=10)
    made.owner("e").put("e", cap_records=1000, discard="reject")
    made.put_forward("r", "a", "e")
    made.append("a", 1, 2, 3)
    made.pass_time(100)
    made.owner("e").put("e", cap_records=3)
    made.append("a", *range(4, 24))
    made.pass_time(3000)
    made.owner("e").put("e", cap_records=0)
    made.pass_time(3000)
    owner = made.owner("e")
    assert [int(one.data) for one in owner.read("e").records] == [1, 2, 3]
    behind = owner.read("e", 3)
    assert behind.tombstone is not None
    assert (behind.tombstone.gap_from, behind.tombstone.gap_to) == (4, 13)
    assert behind.tombstone.reason == "source_trim"
    assert [int(one.data) for one in behind.records] == list(range(14, 24))
    owner.kill()
    again = owner.read("e", 3)
    assert (again.tombstone, again.records) == (behind.tombstone, behind.records)


def test_deletes_do_not_travel() -> None:
    made = stage()
    made.put_forward("r", "a", "e")
    made.append("a", 1, 2, 3)
    made.shards[0].delete("a", before_seq=3)
    made.append("a", 4)
    assert made.data("e") == [1, 2, 3, 4]
    assert made.shards[0].read("e", 3).tombstone is None


@pytest.mark.parametrize("shards", SHARDS)
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_the_end_of_the_source_ends_the_rule(shards: int, is_made_anew: bool) -> None:
    made = stage(shards)
    made.put_forward("r", "a", "e")
    made.append("a", 1)
    made.pass_time(100)
    if shards > 1:
        made.cut_off(made.number_of("a"))
    made.owner("a").delete_topic("a")
    if is_made_anew:
        made.append("a", 2, 3)
    made.pass_time(100)
    made.mend()
    made.pass_time(2000)
    assert made.forward("r") is None
    assert made.data("e") == [1]
    made.owner("e").kill()
    assert made.owner("e").shard.state.forwards == {}


def test_the_end_of_the_destination_ends_the_rule() -> None:
    made = stage()
    made.put_forward("r", "a", "e")
    made.append("a", 1)
    made.shards[0].send_append("a", 2)
    assert made.shards[0].delete_topic("e").forwards == ["r"]
    made.append("e", 7)
    made.append("a", 3)
    made.pass_time(100)
    assert made.data("e") == [7]
    made.shards[0].kill()
    assert made.data("e") == [7]


def test_a_shard_that_is_away_is_waited_for() -> None:
    made = stage(3)
    assert made.number_of("a") != made.number_of("e")
    made.put_forward("r", "a", "e")
    made.append("a", 1)
    made.pass_time(100)
    made.cut_off(made.number_of("a"))
    made.append("a", 2)
    made.pass_time(5000)
    assert made.data("e") == [1]
    made.mend()
    made.pass_time(500)
    assert made.data("e") == [1, 2]


def test_what_another_shard_may_still_lose_is_not_copied() -> None:
    made = stage(3)
    source = made.owner("a")
    made.put_forward("r", "a", "e")
    made.append("a", 1)
    made.pass_time(100)
    source.send_append("a", 2)
    for _ in range(20):
        source.loop.run_until_idle()
        made.owner("e").settle()
    assert source.topic("a").head == 2, "it is written, and not synced"
    assert made.data("e") == [1]
    made.pass_time(100)
    assert made.data("e") == [1, 2]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_destination_of_each_class_goes_on_where_it_was(durability: str) -> None:
    made = stage()
    one = made.shards[0]
    one.put("g", durability=durability)
    made.put_forward("r", "a", "g")
    made.append("a", 1, 2)
    assert made.data("g") == [1, 2]
    made.end(0, OneShard.kill)
    made.append("a", 3)
    made.settle()
    assert made.data("g") == ([3] if durability == "ephemeral" else [1, 2, 3])
    assert total(made) == 3


def test_a_circle_ends_after_so_many_hops() -> None:
    made = stage()
    made.put_forward("there", "a", "e", may_cycle=True)
    made.put_forward("back", "e", "a", may_cycle=True)
    made.append("a", record(7, meta={"k": 1}))
    assert len(made.data("a")) + len(made.data("e")) == HOPS_MAX + 1
    last = made.shards[0].read("a", limit=100).records[-1].meta
    assert last is not None
    stamp = msgspec.json.decode(last)["_topics_router"]
    assert stamp == {"source": "e", "epoch": made.shards[0].topic("e").epoch, "seq": 8, "hops": HOPS_MAX}


def test_a_rule_made_anew_does_not_double_what_is_held_where_that_is_asked_for() -> None:
    made = stage(1, "a", "e", "g")
    for dest, is_exactly_once in (("e", True), ("g", False)):
        made.put_forward(dest, "a", dest, is_exactly_once=is_exactly_once)
    made.append("a", *range(1, 11))
    for dest, is_exactly_once in (("e", True), ("g", False)):
        made.delete_forward(dest)
        made.shards[0].delete(dest, before_seq=4)
        made.put_forward(dest, "a", dest, is_exactly_once=is_exactly_once, is_from_start=True)
    made.append("a", 11)
    made.pass_time(100)
    assert made.data("e") == [4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 11]
    assert made.data("g") == [4, 5, 6, 7, 8, 9, 10, *range(1, 12)]
    records = made.shards[0].read("e").records
    epoch = made.shards[0].topic("a").epoch
    stamps = [msgspec.json.decode(one.meta or b"")["_topics_router"] for one in records]
    assert [(one["source"], one["epoch"], one["seq"]) for one in stamps] == [
        ("a", epoch, int(record.data)) for record in records
    ]


def test_what_is_looked_at_in_vain_is_not_looked_at_again_for_ever() -> None:
    made = stage()
    made.put_forward("r", "a", "e", tags=["tag", "Eq", "x"])
    before = made.shards[0].shard.log.counters.frames
    many = SKIPPED_MAX + CHUNK_RECORDS_MAX
    for number in range(many):
        made.shards[0].send_append("a", number)
    made.settle()
    assert made.shards[0].shard.log.counters.frames - before < many + 50
    made.end(0, OneShard.kill)
    forward = made.shards[0].shard.state.forwards["r"]
    assert forward.seq >= SKIPPED_MAX
    made.append("a", record(1, "x"))
    assert made.data("e") == [1]


def test_jobs_are_copied_and_copies_are_jobs() -> None:
    made = stage(1, "a")
    one = made.shards[0]
    for queue in ("q", "w"):
        one.put(queue, type="queue")
    made.put_forward("into", "a", "q")
    made.put_forward("out", "q", "w")
    made.append("a", 1, 2, 3)
    assert one.claimed("q", "n", 2) == [1, 2]
    one.ack("q", "n", 1)
    assert one.claimed("w", "n", 9) == [1, 2, 3]


def test_under_pressure_it_goes_one_band_below_its_destination() -> None:
    made = stage()
    one = made.shards[0]
    one.put("e", priority=400)
    made.put_forward("r", "a", "e")
    watch = one.shard.state.watch
    watch.obey(0.0, pauses=True)
    one.send_append("a", 1)
    one.loop.run_turn()
    one.loop.run_turn()
    made.settle()
    assert made.data("e") == [1], "it waits for its turn, and gets it"
    one.put("e", priority=-10)
    made.append("a", 2)
    assert made.data("e") == [1], "what pauses is not copied"
    watch.obey(0.0, pauses=False)
    made.settle()
    assert made.data("e") == [1, 2]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_disk_without_room_holds_it_up(durability: str) -> None:
    made = stage()
    one = made.shards[0]
    one.put("e", durability=durability)
    made.put_forward("r", "a", "e")
    made.append("a", 1)
    fault = one.disk.fail("pwrite", nth=2, error=ENOSPC)
    made.append("a", 2, 3)
    assert fault.fired == 1
    assert made.data("e") == [1]
    made.append("a", 4)
    made.pass_time(10_000)
    assert made.data("e") == [1, 2, 3, 4]
    assert total(made) == 4
    made.end(0, OneShard.kill)
    assert made.data("e") == [1, 2, 3, 4]


def test_what_comes_in_a_moment_is_copied_together() -> None:
    made = stage()
    made.put_forward("r", "a", "e")
    one = made.shards[0]
    told = [one.send_append("a", 1)]
    one.loop.run_until_idle()
    told.append(one.send_append("a", 2, 3))
    one.loop.run_until_idle()
    assert all(one.came for one in told)
    assert one.topic("e").head == 0, "who appended is answered first"
    before = one.shard.log.counters.batches
    one.loop.advance(GATHER_SECONDS * 1000)
    assert made.data("e") == [1, 2, 3]
    assert one.shard.log.counters.batches == before + 1


def test_a_forward_that_ends_while_it_gathers_leaves_nobody_waiting() -> None:
    made = stage()
    made.put_forward("r", "a", "e")
    one = made.shards[0]
    one.send_append("a", 1)
    one.loop.run_until_idle()
    delete_forward(one.shard.state, "r", Told())
    made.pass_time(100)
    assert one.topic("e").head in (0, 1)
    assert one.topic("a").waiters is None


def test_copies_leave_the_disk_to_who_appends() -> None:
    dests = [f"d{number}" for number in range(20)]
    made = stage(1, "a", *dests, max_waiting_bytes=64 << 10)
    one = made.shards[0]
    for dest in dests:
        # With a stamp of their own, so that what is copied is written again.
        made.put_forward(dest, "a", dest, is_exactly_once=True)
    made.pass_time(200)
    one.send_append("a", *[b'"%b"' % (b"x" * 1000)] * 10)
    # Nothing is synced meanwhile.
    one.loop.advance(20)
    log = one.shard.log
    assert 16 << 10 < log.unsynced_bytes < 32 << 10
    told = one.send_append("a", 1)
    one.loop.run_until_idle()
    assert told.came, "who appends does not wait for the disk"
    assert not log.behind
    made.pass_time(10_000)
    assert {one.topic(dest).head for dest in dests} == {11}
    assert {total(made, dest) for dest in dests} == {11}


def test_a_loss_that_finds_no_room_is_told_later_once() -> None:
    made = stage()
    one = made.shards[0]
    one.put("e", cap_records=1, discard="reject")
    one.put("a", cap_records=1)
    made.put_forward("r", "a", "e")
    for number in (1, 2, 3, 4):
        made.append("a", number)
    one.disk.fail("pwrite", nth=2, error=ENOSPC)
    one.put("e", cap_records=0)
    made.pass_time(10_000)
    answer = one.read("e", 1)
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (2, 3)
    assert [int(record.data) for record in answer.records] == [4]
    assert answer.head_seq == 4


def test_a_record_that_is_damaged_is_a_loss_of_the_destination() -> None:
    made = stage(1, segment_max_events=2)
    one = made.shards[0]
    one.put("e", cap_records=1, discard="reject")
    made.put_forward("r", "a", "e")
    for number in range(1, 7):
        made.append("a", number)
    one.checkpoint()
    [path] = [path for path in one.disk.all_files() if path.endswith("seg-0000000000000003.data")]
    one.close()
    damaged = bytearray(one.disk.read_file(path))
    damaged[-1] ^= 1
    file = one.disk.open_write(path)
    one.disk.pwrite(file, bytes(damaged), 0)
    one.disk.close(file)
    made.end(0, lambda shard: shard.open(one.disk))
    one.put("e", cap_records=0)
    made.pass_time(5000)
    assert made.data("e") == [1, 2, 3, 5, 6]
    behind = one.read("e", 3)
    assert behind.tombstone is not None
    assert behind.tombstone.reason == "source_trim"


def test_many_forwards_begin_again_after_a_start() -> None:
    made = stage()
    one = made.shards[0]
    dests = [f"d{number}" for number in range(40)]
    for dest in dests:
        one.put(dest)
        made.put_forward(dest, "a", dest)
    made.append("a", 1)
    made.end(0, OneShard.kill)
    made.append("a", 2)
    assert all(made.data(dest) == [1, 2] for dest in dests)


class TickingClock(ManualClock):
    """Where it ticks, a tenth of a millisecond passes with each look at it."""

    ticks = False

    def monotonic(self) -> float:
        self.advance_ns(100_000 if self.ticks else 0)
        return super().monotonic()


def test_many_that_are_behind_hold_a_turn_of_the_loop_no_longer_than_few() -> None:
    clock = TickingClock()
    made = ForwardStage(1, clock=clock)
    one = made.shards[0]
    dests = [f"d{number}" for number in range(60)]
    for topic in ("a", *dests):
        one.put(topic)
    for _ in range(4):
        made.append("a", *range(CHUNK_RECORDS_MAX))
    for dest in dests:
        made.send_put_forward(ForwardRule(dest, "a", dest, is_from_start=True))
    clock.ticks = True
    served_most = 0
    for _ in range(400):
        before = [one.topic(dest).next_seq for dest in dests]
        clock.advance(1)  # Nothing looks at it where all wait for a timer.
        one.turn()
        served = sum(one.topic(dest).next_seq != seq for dest, seq in zip(dests, before, strict=True))
        served_most = max(served_most, served)
    assert {one.topic(dest).head for dest in dests} == {4 * CHUNK_RECORDS_MAX}
    assert 1 < served_most <= 15
