"""The directory of two shards that `reshard_sweep.py` reshards: one of everything that a shard stores.

Promises: much of it is in segments and in the newest snapshot, as much in the log only. Segments are hot, in
the object store, and where an earlier version moved them. One topic was moved to another shard and is an
exception of the placement; each shard has a departed topic and owes deletes to the store and the catalog.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from shared.contract.names import topic_id
from shared.contract.route_rule import RouteRule
from shared.ipc.placement import Placement, shard_of
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.shard.shard_driver import COLD_DIR, DATA_DIR
from tests.harness.shard.two_shards import TwoShards
from topicsd.disk.atomic_replace import exists
from topicsd.disk.layout import make_dirs, shard_paths
from topicsd.disk.placement_file import write_placement
from topicsd.engine.checkpoint.reader_lock import ReaderLock
from topicsd.engine.ownership.departed import MOVED
from topicsd.engine.ownership.owned import owned_of
from topicsd.engine.ownership.rounds import set_aside
from topicsd.engine.pending import PendingFrame
from topicsd.engine.read.cursors import put_cursor
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import ProducerSeq
from topicsd.engine.routes.route import SourcePosition, put_route
from topicsd.engine.session_log import log_session
from topicsd.log.control_frame import OwnershipFrame, SessionFrame, encode_control
from topicsd.segment.entry import COLD, DATA, SUFFIXES

SHARDS = 2
KEY = "once"
SETTINGS: dict[str, Any] = {
    "cold_dir": COLD_DIR,
    "segment_max_events": 10,
    "hot_retain_segments": 1,
    "reader_grace_ms": 0,
}
ROUND_MS = 60_001
FLOORS = (1 << 40, 1 << 41)
"""The epoch floors of the shards."""


class Names(NamedTuple):
    """The topics of one shard."""

    a: str
    b: str
    queue: str
    gone: str
    cap: str
    ephemeral: str
    copy: str
    owed: str
    """Deleted; the store still has its objects, which are listed."""
    late: str
    """Deleted in the log only, with objects in the store."""
    forget: str
    away: str
    """Departed, in the snapshot."""
    away_late: str
    """Departed, in the log only."""


def names_of(shard: int) -> Names:
    return Names(*(name_on(shard, stem) for stem in Names._fields))


def name_on(shard: int, stem: str) -> str:
    """Return a name that the rule places on the shard."""
    number = 0
    while shard_of(topic_id(f"{stem}-{number}"), SHARDS) != shard:
        number += 1
    return f"{stem}-{number}"


PINNED = name_on(0, "pinned")
"""A topic that was moved to shard 1."""
DELETED = name_on(0, "deleted")
"""A topic that was moved to shard 1 and deleted there."""


def full_disk() -> tuple[MemoryDisk, ManualClock]:
    """Return a disk with a directory of everything, cleanly stopped, with much of it in the log only."""
    clock, disk = ManualClock(), None
    for number in range(SHARDS):
        one = OneShard(shard=number, shards=SHARDS, disk=disk, clock=clock, **SETTINGS)
        disk = one.disk
        # As if a topic with this epoch had come and gone.
        one.shard.state.epoch_floor = FLOORS[number]
        fill(one, names_of(number), first=True)
        one.checkpoint()
        one.pass_time(ROUND_MS)
        for _ in range(3):
            one.checkpoint()
        move_as_before(one, names_of(number).b)
        if number == 1:
            move_as_before(one, names_of(number).a)
        one.checkpoint()
        disk.write_file(one.paths.quarantine_file("wal-0000000000000001.log.at-9.ab"), b"set aside")
        one.close()
    assert disk is not None
    two = TwoShards(disk, clock, **SETTINGS)
    two.move(PINNED)
    two.shards[1].append(PINNED, *range(25))
    two.shards[1].pass_time(ROUND_MS)
    write_placement(disk, DATA_DIR, Placement(SHARDS).changed({PINNED: 1, DELETED: 1}))
    for one in two.shards:
        finish(one)
    assert any(path.startswith(f"{COLD_DIR}/shards/01") for path in disk.all_files())
    return disk.after_reboot(), clock


def finish(one: OneShard) -> None:
    """Continue after the last snapshots, and close the shard with deletes still to be done in the store."""
    names = names_of(one.identity.shard)
    with ReaderLock(one.paths.readers, "spark", one.disk):
        one.delete_topic(names.owed)
        for _ in range(3):
            one.checkpoint()
        assert one.shard.state.objects_to_delete
        one.delete_topic(names.late)
        fill(one, names, first=False)
        for _ in range(7 * one.identity.shard):
            one.append(names.b, "the logs of the shards have other lengths")
        one.close(checkpoint=False)


def move_as_before(one: OneShard, name: str) -> None:
    """Move the cold segments of a topic to where an earlier version had them."""
    disk, objects = one.disk, one.shard.stores.objects
    assert objects is not None
    moved = 0
    for run in one.topic(name).runs:
        if not isinstance(run, SealedRun) or run.entry.tier != COLD:
            continue
        stem, moved = run.entry.object_stem, moved + 1
        for suffix in SUFFIXES:
            key = run.name.key(suffix)
            local = f"{one.paths.root}/{key}"
            source = f"{COLD_DIR}/{stem}{DATA}" if suffix == DATA else local
            if exists(disk, source):
                target = f"{shard_paths(COLD_DIR, one.identity.shard).root}/{key}"
                make_dirs(disk, os.path.dirname(target))
                disk.write_file(target, disk.read_file(source))
            if exists(disk, local):
                disk.unlink(local)
        objects.delete(stem)
        one.shard.state.segments.forget(run.name)
        run.entry = msgspec.structs.replace(run.entry, object_stem="")
    assert moved


def own(one: OneShard, name: str) -> None:
    """Note that the topic has a row in a catalog."""
    topic, frame = one.topic(name), OwnershipFrame(3, 1 << 40)
    topic.ownership = owned_of(frame)
    one.shard.state.note(
        topic, encode_control(frame, topic_id=topic.topic_id, ts=topic.last_ts), PendingFrame(topic)
    )
    one.settle()


def fill(one: OneShard, names: Names, *, first: bool) -> None:
    a, b, queue, gone, cap, ephemeral, copy = names[:7]
    state, home = one.shard.state, one.identity.shard
    if first:
        one.put(a, durability="fsync", idempotency_window_ms=3_600_000)
        one.put(queue, type="queue", lease_ms=600_000, leases_durable=True)
        one.put(cap, cap_records=5)
        one.put(ephemeral, durability="ephemeral")
        one.append(copy, 1)
        own(one, a)
        for name in (names.owed, names.late, names.away, names.away_late):
            one.append(name, *range(25))
        if home == 0:
            one.put(PINNED, idempotency_window_ms=3_600_000)
            one.append(PINNED, *range(8), idempotency_key=KEY)
    one.append(
        a, *[record({"n": n, "home": home}, tag=f"t.{n % 3}", node="n1", meta={"m": n}) for n in range(35)]
    )
    one.append(a, "keyed", idempotency_key=KEY if first else "twice")
    one.append(b, *range(100 * home, 100 * home + 25), producer=ProducerSeq("writer", 5 if first else 6))
    one.delete(a, seqs=[2, 3, 12] if first else [14, 40])
    one.delete(b, before_seq=4 if first else 30)
    one.append(cap, *range(9))
    one.append(ephemeral, 1, 2)
    one.append(queue, *range(8))
    one.append(queue, "later", delay_ms=3_600_000)
    seqs = one.claimed(queue, "worker", 4)
    one.ack(queue, "worker", seqs[0])
    one.nack(queue, "worker", seqs[1], ms=3_600_000, reason="full")
    one.append(gone, *range(12))
    one.delete_topic(gone)
    if not first:
        one.append(gone, "again")
    # The catalog has rows to forget, of a deleted topic in the snapshot and of one in the log.
    one.append(names.forget, 1)
    own(one, names.forget)
    one.delete_topic(names.forget)
    set_aside(state, one.topic(names.away if first else names.away_late), MOVED, None)
    route = RouteRule(f"to-{copy}", a, copy)
    calls: list[Callable[[RecordedReply], None]] = [
        lambda reply: put_cursor(state, a, "billing", 7 if first else 20, None, reply),
        lambda reply: log_session(state, session(home, [a, b], first), reply),
        lambda reply: put_route(state, route, reply, locate),
    ]
    for call in calls:
        reply = RecordedReply()
        call(reply)
        one.settle()
        assert reply.code is None, reply.answer


def locate(name: str, reply: Callable[[Any], object]) -> None:
    reply(SourcePosition(1, 1, 1))


def session(shard: int, names: list[str], first: bool) -> SessionFrame:
    return SessionFrame(
        session=bytes([shard, first]) * 8,
        names=names,
        from_seqs=[1, 2],
        epochs=[1, 1],
        nodes=[],
        limit=10,
        bytes_max=1000,
        heartbeat_ms=1000,
    )
