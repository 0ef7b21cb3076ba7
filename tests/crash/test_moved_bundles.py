"""A topic that is moved to another shard while the power fails, or both processes die, at every disk call.

Whatever is lost when: the topic is whole on the source, on the target, or on both and the same. The move can
then be completed, and leaves nothing behind.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.shard.topic_view import topic_view
from tests.harness.shard.two_shards import MoveRefusedError, TwoShards
from tests.harness.sweeps.crash_sweep import DEEP
from topicsd.engine.bundle.gather import freeze, resume
from topicsd.engine.read.cursors import put_cursor
from topicsd.engine.requests import ProducerSeq
from topicsd.engine.routes.route import put_route

CUTS = 4 if DEEP else 1
TOPICS = ("log", "ordered", "delayed", "small")

pytestmark = pytest.mark.usefixtures("quiet_log")


def _fill_log(one: OneShard) -> None:
    one.put("log", durability="fsync")
    one.put("source")
    for number in range(20):
        key = f"k{number}" if number % 3 == 0 else None
        producer = ProducerSeq("p", number - number // 3) if key is None else None
        one.append(
            "log",
            record(number, tag="xy"[number % 2], node="n"),
            idempotency_key=key,
            producer=producer,
        )
        if number in (5, 11):
            one.checkpoint()
    one.delete("log", tag="x", before_seq=9)
    one.delete("log", seqs=[14, 20])
    put_cursor(one.shard.state, "log", "reader", 7, None, RecordedReply())
    put_route(one.shard.state, RouteRule("r", "source", "log"), RecordedReply())
    one.settle()


def _fill_ordered(one: OneShard) -> None:
    one.put("ordered", type="queue", order_by="tag", durability="fsync", leases_durable=True)
    one.append("ordered", *[record(number, tag="abc"[number % 3]) for number in range(12)])
    one.checkpoint()
    one.append("ordered", *[record(number, tag="abc"[number % 3]) for number in range(12)])
    one.claimed("ordered", "w", 2, lease_ms=3_600_000)
    one.ack("ordered", "w", 1)


def _fill_delayed(one: OneShard) -> None:
    one.put("delayed", type="queue", durability="fsync", max_deliveries=1)
    one.append("delayed", *range(6))
    one.append("delayed", *range(6), delay_ms=3_600_000)
    one.claimed("delayed", "w", 2, lease_ms=3_600_000)
    one.nack("delayed", "w", 1)
    one.claim("delayed", "w", 1)
    one.nack("delayed", "w", 2, 3)


def _fill_small(one: OneShard) -> None:
    one.put("small", cap_records=7, durability="fsync")
    for number in range(15):
        one.append("small", number)
        if number == 9:
            one.checkpoint()
            one.delete("small", seqs=[5, 8])
    one.delete("small", seqs=[13])


FILL: dict[str, Callable[[OneShard], None]] = {
    "log": _fill_log,
    "ordered": _fill_ordered,
    "delayed": _fill_delayed,
    "small": _fill_small,
}


def _filled(name: str) -> TwoShards:
    two = TwoShards(segment_max_events=5)
    FILL[name](two.shards[0])
    two.settle()
    for one in two.shards:
        one.pass_time(100)
    return two


def _move(two: TwoShards, name: str) -> None:
    two.move(name)
    for one in two.shards:
        one.checkpoint()


def _holders(two: TwoShards, name: str) -> list[int]:
    return [number for number, one in enumerate(two.shards) if name in one.shard.topic_names()]


def _finish(two: TwoShards, name: str) -> None:
    """Complete the move from whatever a crash has left."""
    holders = _holders(two, name)
    if holders == [0]:
        two.move(name)
    elif holders == [0, 1]:
        one = two.shards[0]
        freeze(one.shard.state, one.topic(name))
        assert two.depart(name).answer.deleted


def _comparable(view: dict[str, Any], ends_leases: bool) -> dict[str, Any]:
    """Without what a restart may change: leases that are not logged."""
    return {key: value for key, value in view.items() if not (ends_leases and key in ("jobs", "counts"))}


def _check(two: TwoShards, name: str, before: dict[str, Any]) -> None:
    ends_leases = name == "delayed"
    holders = _holders(two, name)
    assert holders, "the topic is lost"
    for number in holders:
        view = topic_view(two.shards[number], name)
        assert _comparable(view, ends_leases) == _comparable(before, ends_leases)
    _finish(two, name)
    assert _holders(two, name) == [1]
    view = topic_view(two.shards[1], name)
    assert _comparable(view, ends_leases) == _comparable(before, ends_leases)
    assert two.shards[1].append(name, 1).first_seq == before["head"] + 1
    for one in two.shards:
        for _ in range(4):
            one.append("other", 1)
            one.checkpoint()
    two.kill()
    assert two.shards[1].state(name).head_seq == before["head"] + 1
    left = [path for path in two.disk.all_files() if "/topics/" in path]
    directory = f"{two.shards[1].topic(name).topic_id:016x}-"
    assert not [path for path in left if "shards/00" in path and directory in path], left
    assert not [path for path in left if "bundle.bin" in path or ".deleted" in path], left


def _calls(name: str) -> int:
    two = _filled(name)
    before = two.disk.calls
    _move(two, name)
    return two.disk.calls - before


ENDS: dict[str, Callable[[MemoryDisk, int], None]] = {
    "power": MemoryDisk.cut_power_after,
    "killed": MemoryDisk.kill_process_after,
    "torn": partial(MemoryDisk.kill_process_after, torn=True),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_is_whole_when_both_shards_are_lost_at_every_call(name: str, end: str) -> None:
    calls = _calls(name)
    assert calls > 30
    for after in range(calls):
        for seed in range(CUTS if end == "power" else 1):
            print("lost after", after, "seed", seed)
            two = _filled(name)
            before = topic_view(two.shards[0], name)
            ENDS[end](two.disk, after)
            with pytest.raises(MachineGoneError):
                _move(two, name)
            if end == "power":
                two.reopen(two.disk.after_power_cut(Random(f"{after} {seed}")))
            else:
                two.kill()
            _check(two, name, before)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("name", ["log", "ordered"])
def test_a_failed_call_costs_at_most_the_move(name: str, error: int) -> None:
    failed = 0
    for nth in range(1, _calls(name) + 1):
        print("failed call", nth)
        two = _filled(name)
        before = topic_view(two.shards[0], name)
        fault = two.disk.fail(nth=nth, error=error)
        with suppress(OSError, MoveRefusedError):
            two.move(name)
        failed += fault.fired
        two.disk.clear_faults()
        for one in two.shards:
            one.settle()
        if any(one.shard.log.failed is not None for one in two.shards):
            two.kill()
        for one in two.shards:
            for topic in list(one.shard.state.frozen):
                resume(one.shard.state, topic)
            one.pass_time(10_000)
        _check(two, name, before)
    assert failed > 30
