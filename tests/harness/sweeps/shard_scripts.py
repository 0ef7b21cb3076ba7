"""Small scripts of client requests to a shard, for sweeps that stop them after each disk call.

Each script has one subject and is short enough to be stopped everywhere; together they have every kind of
frame and every way for a file to end. A script may run in any manner of the disk thread.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.shard.shard_run import ShardRun

Script = Callable[[ShardRun], None]

SCRIPTS: dict[str, Script] = {}


def script(make: Script) -> Script:
    SCRIPTS[make.__name__] = make
    return make


@script
def all_classes(run: ShardRun) -> None:
    """Alternate topics of each class in one log, in requests of one and of several records."""
    run.put("f", durability="fsync")
    run.put("e", durability="ephemeral")
    run.append("d", 30)
    run.turn()
    run.append("f", 20, 700)
    run.append("m", 40, durability="memory")
    run.append("d", 10)
    run.turn()
    run.sync()
    run.append("e", 5)
    run.append("d", 600, 5, 5)
    run.append("f", 8)
    run.append("d", 9)
    run.turn()
    run.append("m", 1, 1)
    run.append("e", 5, 5)
    run.turn()
    run.advance(60)
    run.append("d", 3)
    run.append("f", 3)
    run.turn()


@script
def rotation(run: ShardRun) -> None:
    """Fill files within a few requests, one of which is larger than a file."""
    run.put("f", durability="fsync")
    run.turn()
    for size in (900, 1500, 1200, 300):
        run.append("f", size)
        run.append("d", size, 10)
        run.turn()
    run.append("f", 2500, 2500)
    run.turn()
    run.append("d", 3000)
    run.turn()
    run.advance(60)
    run.append("d", 50)
    run.append("f", 50)
    run.turn()
    run.close()


@script
def deletes(run: ShardRun) -> None:
    """Delete by seq, by tag and by prefix in both classes, and again after what was deleted."""
    run.put("f", durability="fsync")
    for name in ("f", "d"):
        run.append(name, 10, 10, 10, tags=("a", "ab", None))
        run.append(name, 400, tags=("b",))
    run.turn()
    # The creation of the second topic may be in a file of its own, which has a sync of its own.
    run.sync()
    run.sync()
    run.delete("d", tag="a")
    run.delete("f", tag="a", is_prefix=True)
    run.append("f", 11, tags=("a",))
    run.append("d", 11, 12, tags=("a", "b"))
    run.turn()
    run.delete("f", before_seq=2)
    run.delete("d", tag="b", is_prefix=True)
    run.turn()
    run.sync()
    run.append("d", 13, 14)
    run.turn()
    run.delete("d", after_seq=406)
    run.delete("f", after_seq=3, before_seq=6)
    run.append("d", 15)
    run.turn()
    run.delete("d", before_seq=7)
    run.delete("f", before_seq=100)
    run.turn()
    run.advance(60)
    run.append("f", 5)
    run.turn()


@script
def caps(run: ShardRun) -> None:
    """Evict by caps of records and bytes; one topic rejects instead."""
    run.put("f", durability="fsync", cap_records=3)
    run.put("d", cap_bytes=800)
    run.put("r", cap_records=2, discard="reject")
    run.turn()
    for size in (200, 300, 250):
        run.append("f", 10, size)
        run.append("d", size)
        run.turn()
    run.append("r", 10, 10)
    run.turn()
    run.sync()
    run.append("r", 10)
    run.append("d", 5, 5, 700)
    run.delete("f", before_seq=5)
    run.turn()
    run.append("f", 1, 2, 3, 4)
    run.put("f", cap_records=2)
    run.turn()
    run.advance(60)
    run.append("f", 6)
    run.append("d", 6)
    run.turn()


@script
def ages(run: ShardRun) -> None:
    """Expire records by TTL; what a reader was shown as gone stays gone."""
    run.put("f", durability="fsync", ttl_ms=1000)
    run.put("d", ttl_ms=500, cap_records=4)
    run.turn()
    run.append("f", 10, 10)
    run.append("d", 10)
    run.turn()
    run.advance(400)
    run.append("d", 20, 20)
    run.turn()
    run.advance(200)
    run.all_contents()
    run.append("f", 30)
    run.append("d", 30)
    run.turn()
    run.advance(900)
    run.all_contents()
    run.append("d", 40)
    run.turn()
    run.sync()
    run.append("f", 40)
    run.turn()


@script
def keyed_writes(run: ShardRun) -> None:
    """Repeat keyed writes in flight and afterwards, including one that creates a topic."""
    first = run.append("f", 10, 20, key="one", durability="fsync")
    run.retry(first)
    run.turn()
    run.sync()
    made = run.append("d", 10, key="one")
    run.turn()
    run.sync()
    run.retry(made)
    second = run.append("d", 30, 40, key="two")
    run.append("f", 5, key="two")
    run.turn()
    run.retry(second)
    run.retry(first)
    run.advance(60)
    run.append("f", 6, key="three")
    run.append("d", 900, key="three")
    run.turn()


@script
def changes(run: ShardRun) -> None:
    """Change a topic's class while it is written, both ways; joined entries keep theirs."""
    run.append("a", 10)
    run.append("b", 10, durability="fsync")
    run.turn()
    run.sync()
    run.append("a", 20)
    run.put("a", durability="fsync")
    run.append("a", 21)
    run.append("b", 20)
    run.put("b", durability="disk")
    run.append("b", 21)
    run.turn()
    run.append("a", 30)
    run.append("b", 30)
    run.turn()
    run.sync()
    run.append("a", 40)
    run.append("b", 40, 40)
    run.turn()
    run.put("b", durability="memory", cap_records=100)
    run.put("a", durability="disk")
    run.turn()
    run.append("a", 41)
    run.append("b", 41)
    run.turn()
    run.advance(60)
    run.append("b", 50)
    run.append("a", 50)
    run.turn()


@script
def incarnations(run: ShardRun) -> None:
    """Delete and recreate topics, and write to them while they are being deleted."""
    run.append("t", 10, 10, key="k")
    run.append("u", 10, durability="fsync")
    run.turn()
    run.sync()
    run.drop("t")
    run.append("t", 20, key="k")
    run.append("u", 20)
    run.turn()
    run.sync()
    run.append("t", 21)
    run.drop("u")
    run.turn()
    run.put("u", durability="ephemeral")
    run.turn()
    run.sync()
    run.append("u", 5)
    run.drop("t")
    run.turn()
    run.sync()
    run.turn()
    run.append("t", 30, durability="fsync")
    run.append("u", 6)
    run.turn()
    run.advance(60)


@script
def quiet_times(run: ShardRun) -> None:
    """Alternate bursts and silence: idle marks, ceilings that rise several steps and fall."""
    run.append("d", *[1] * 60)
    run.append("e", *[1] * 30, durability="ephemeral")
    run.turn()
    run.append("d", *[1] * 40)
    run.turn()
    run.append("d", *[1] * 30)
    run.append("e", *[1] * 30)
    run.turn()
    run.advance(110)
    run.append("f", 30, durability="fsync")
    run.turn()
    run.advance(1200)
    run.append("d", 10)
    run.append("e", 10)
    run.turn()
    run.advance(1200)
    run.advance(60)
    run.append("f", 7)
    run.turn()
    run.close(checkpoint=False)
