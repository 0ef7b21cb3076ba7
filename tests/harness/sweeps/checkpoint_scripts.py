"""Scripts about checkpoints, and the table of all scripts, with `shard_scripts.py`.

With segments of four records and two kept snapshots, every step of a checkpoint happens within a few
requests. `copy` runs some of a checkpoint's jobs, so that later steps find it half done; in the prompt manner
it has finished already, which is another case.
"""

from __future__ import annotations

from tests.harness.shard.shard_run import ShardRun
from tests.harness.sweeps.shard_scripts import SCRIPTS, script

__all__ = ["LONG", "SCRIPTS"]

_SHORT = frozenset(SCRIPTS) - {"rotation", "quiet_times"}


@script
def checkpoints_of_all_classes(run: ShardRun) -> None:
    """Append in every class before, during and after two successive checkpoints."""
    run.put("f", durability="fsync")
    run.append("e", 5, durability="ephemeral")
    run.append("d", 30, 10, 10)
    run.append("f", 20, 20)
    run.turn()
    run.checkpoint()
    run.append("m", 40, durability="memory")
    run.turn()
    run.copy(3)
    run.append("d", 11, 12, 500)
    run.append("f", 9)
    run.append("e", 6)
    run.turn()
    run.sync()
    run.copy(4)
    run.append("d", 13)
    run.append("m", 1, 1)
    run.turn()
    run.settle()
    run.append("f", 14, 15)
    run.turn()
    run.checkpoint()
    run.turn()
    run.append("d", 16)
    run.append("e", 5)
    run.advance(60)
    run.append("d", 17)
    run.turn()


@script
def watch_sessions(run: ShardRun) -> None:
    """Create and end sessions before, during and after checkpoints, among writes of every class."""
    run.put("f", durability="fsync")
    first, second = run.watch("d", "f"), run.watch("d")
    run.append("d", 30)
    run.turn()
    run.append("f", 20)
    run.watch("f")
    run.turn()
    run.sync()
    run.unwatch(first)
    run.append("d", 10, 400)
    run.turn()
    run.checkpoint()
    third = run.watch("f", "d", "e")
    run.turn()
    run.copy(2)
    run.unwatch(second)
    fourth = run.watch("d")
    run.append("f", 5)
    run.turn()
    run.settle()
    run.append("d", 900)
    run.unwatch(fourth)
    run.turn()
    run.checkpoint()
    run.turn()
    run.settle()
    run.unwatch(third)
    run.watch("z")
    run.advance(60)
    run.append("f", 7)
    run.turn()
    run.close()


@script
def deletes_in_segments(run: ShardRun) -> None:
    """Delete by seq, tag and prefix in segments and the tail, before and during a checkpoint."""
    run.put("f", durability="fsync")
    for name in ("f", "d"):
        run.append(name, *[10] * 7, tags=("a", "ab", None, "b", "a", "b", "ab"))
    run.turn()
    run.checkpoint()
    run.settle()
    run.append("d", 10, 10, tags=("a", "b"))
    run.delete("d", tag="a")
    run.delete("f", tag="ab")
    run.turn()
    run.checkpoint()
    run.turn()
    run.sync()
    run.copy(3)
    run.delete("d", tag="b", before_seq=7)
    run.delete("f", tag="a", is_prefix=True)
    run.append("f", 11, tags=("b",))
    run.turn()
    run.copy(5)
    run.delete("f", before_seq=5)
    run.delete("d", before_seq=3)
    run.turn()
    run.settle()
    run.append("d", 12, tags=("b",))
    run.turn()
    run.delete("d", tag="b")
    run.turn()
    run.checkpoint()
    run.settle()
    run.delete("f", before_seq=100)
    run.turn()


@script
def truncations_in_segments(run: ShardRun) -> None:
    """Truncate in sealed and active segments and in the tail, before and during a checkpoint."""
    run.put("f", durability="fsync")
    for name in ("f", "d"):
        run.append(name, *[10] * 9, tags=("a", "b", None) * 3)
    run.turn()
    run.checkpoint()
    run.settle()
    run.append("d", 10, 10, tags=("a", "b"))
    run.append("f", 10, 10)
    run.delete("d", after_seq=10)
    run.delete("f", after_seq=4)
    run.turn()
    run.append("f", 11, 11)
    run.turn()
    run.sync()
    run.checkpoint()
    run.turn()
    run.copy(3)
    run.delete("d", after_seq=2, before_seq=6)
    run.delete("f", after_seq=12)
    run.append("d", 12)
    run.turn()
    run.settle()
    run.checkpoint()
    run.settle()
    run.delete("d", after_seq=1)
    run.append("f", 13)
    run.turn()
    run.sync()
    run.settle()


@script
def segments_that_leave(run: ShardRun) -> None:
    """Evict whole and partial segments by caps and age; drop files after two snapshots."""
    run.put("f", durability="fsync", cap_records=5)
    run.put("d", cap_bytes=700, ttl_ms=1000)
    run.turn()
    run.append("f", *[10] * 5, tags=("x", "y", "x", "y", "x"))
    run.append("d", 150, 150, 150)
    run.turn()
    run.checkpoint()
    run.settle()
    run.append("f", 10, 10)
    run.delete("f", tag="y")
    run.append("d", 150, 150)
    run.turn()
    run.checkpoint()
    run.turn()
    run.sync()
    run.copy(2)
    run.append("f", 10, 10, 10)
    run.append("d", 300)
    run.turn()
    run.settle()
    run.advance(1100)
    run.all_contents()
    run.append("d", 10)
    run.turn()
    run.checkpoint()
    run.turn()
    run.settle()
    run.append("f", 10, 10)
    run.turn()


@script
def incarnations_of_segments(run: ShardRun) -> None:
    """Delete and recreate topics with segments, also during a copy; keys survive a checkpoint."""
    run.append("t", 10, 10, key="k")
    run.append("u", *[10] * 5, durability="fsync")
    run.turn()
    run.checkpoint()
    run.settle()
    run.append("t", 11, key="l")
    first = run.append("u", 12, key="k")
    run.turn()
    run.checkpoint()
    run.turn()
    run.sync()
    run.copy(2)
    run.drop("t")
    run.append("t", 20, 20, key="k")
    run.retry(first)
    run.turn()
    run.sync()
    run.copy(3)
    run.append("t", 21)
    run.drop("u")
    run.turn()
    run.settle()
    run.put("u", durability="ephemeral")
    run.turn()
    run.checkpoint()
    run.append("u", 5)
    run.settle()
    run.append("t", 22, key="m")
    run.turn()
    run.close()


@script
def snapshots_in_a_row(run: ShardRun) -> None:
    """Rotate the log and drop it up to the older snapshot, as snapshots are replaced."""
    run.put("f", durability="fsync")
    for size in (900, 1500, 1200):
        run.append("f", size, 10)
        run.append("d", size)
        run.turn()
        run.checkpoint()
        run.settle()
    run.append("f", 2500)
    run.turn()
    run.advance(60)
    run.checkpoint()
    run.turn()
    run.append("d", 10)
    run.turn()
    run.close()


@script
def notes_on_their_way(run: ShardRun) -> None:
    """Capture a topic whose floors and ceilings are logged and not synced, before more records."""
    run.put("f", durability="fsync", ttl_ms=1000)
    run.put("d", ttl_ms=1000)
    run.append("d", 10, 10)
    run.append("f", 10)
    run.turn()
    run.settle()
    run.advance(900)
    run.append("d", 10)
    run.append("f", 10)
    run.turn()
    run.settle()
    run.checkpoint()
    run.loop.run_until_idle()
    run.clock.advance(500)
    run.all_contents()
    run.append("c", *[1] * 20)
    run.loop.run_until_idle()
    run.append("d", 11)
    run.append("c", *[1] * 20)
    run.append("f", 11)
    run.turn()
    run.sync()
    run.copy(4)
    run.append("c", *[1] * 20)
    run.turn()
    run.append("d", 12)
    run.turn()
    run.sync()
    run.copy(4)
    run.settle()
    run.append("d", 13)
    run.turn()


@script
def marks_and_caps(run: ShardRun) -> None:
    """Delete in a segment whose front is evicted by a cap between two checkpoints."""
    run.put("d", cap_records=4)
    run.put("f", durability="fsync", cap_records=4)
    for name in ("d", "f"):
        run.append(name, *[10] * 4, tags=("a", "x", "y", "b"))
    run.turn()
    run.settle()
    for name in ("d", "f"):
        run.delete(name, tag="x")
    run.settle()
    run.checkpoint()
    run.settle()
    for name in ("d", "f"):
        run.append(name, 10)
        run.append(name, 10)
    run.turn()
    run.settle()
    for name in ("d", "f"):
        run.delete(name, tag="y")
    run.turn()
    run.checkpoint()
    run.turn()
    run.settle()
    run.append("d", 10)
    run.turn()


@script
def moves_and_rewrites(run: ShardRun) -> None:
    """Tier old segments, compact half-dead ones, drop dead ones in both tiers.

    Records are deleted and written meanwhile.
    """
    run.put("f", durability="fsync")
    for name in ("f", "d"):
        run.append(name, *[60] * 4, tags=("a", "a", "a", "b"))
        run.append(name, *[60] * 4, tags=("c",) * 4)
        run.append(name, *[10] * 4, tags=("d", "d", "b", "d"))
    run.turn()
    run.sync()
    run.checkpoint()
    run.turn()
    run.settle()
    a_round(run)
    run.copy(3)
    run.append("d", 20, tags=("b",))
    run.delete("d", tag="c")
    run.turn()
    run.copy(9)
    run.settle()
    run.delete("f", tag="a")
    run.delete("f", tag="d")
    run.turn()
    run.settle()
    a_round(run)
    run.copy(3)
    run.delete("f", tag="c")
    run.append("f", 20, tags=("b",))
    run.delete("d", tag="a", is_prefix=True)
    run.turn()
    run.copy(9)
    run.settle()
    a_round(run)
    run.append("d", 21)
    run.turn()
    run.settle()


def a_round(run: ShardRun) -> None:
    """Let upkeep examine all segments."""
    run.steps.append("a round")
    run.shard.upkeep.start_round()
    run.loop.run_until_idle()


LONG = frozenset(SCRIPTS) - _SHORT
"""Scripts that make a few hundred disk calls, or leave as many to the next checkpoint."""
