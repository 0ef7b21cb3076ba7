"""The scripts of the life of a topic; a sweep ends a program at every request to the store or the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.harness.cluster.scripted.scripted_run import NODES, ScriptedRun

FIRST, SECOND = NODES
VACUUM_GRACE_MS: Final = 300_000


def export(run: ScriptedRun) -> None:
    """New segments, a state that changes without records, and segments after it."""
    run.append("log", 9)
    run.append("log", 1, has_key=False)
    run.export("log")
    run.move_cursor("log", 5)
    run.append("jobs", 5)
    run.work("jobs", 3, done=2)
    run.export("jobs")
    run.append("log", 3, tag="x")
    run.export("log")


def release(run: ScriptedRun) -> None:
    """Deleted and evicted records: segments are compacted and exported again, or dropped and released."""
    run.append("log", 16)
    run.append("capped", 6)
    run.export("log")
    run.export("capped")
    # Less than half of a segment is left, one in the middle is empty.
    run.delete("log", 6, 7, 8, 9, 10, 11, 12)
    run.append("capped", 7)
    run.pass_time(65)
    run.export("log")
    run.delete("log", 1, 2, 3, 4)
    run.pass_time(130)
    run.read("log")


def seal_and_adopt(run: ScriptedRun) -> None:
    """A topic that goes to the other node and returns."""
    run.append("log", 6)
    run.write_meanwhile("log")
    run.move_cursor("log", 3)
    run.delete("log", 2)
    run.export("log")
    run.append("log", 3)
    run.seal("log")
    run.adopt("log", SECOND)
    run.append("log", 5)
    run.append("log", 1, has_key=False)
    run.seal("log")
    run.adopt("log", FIRST)
    run.append("log", 2)


def seal_and_adopt_a_queue(run: ScriptedRun) -> None:
    run.append("jobs", 7)
    run.work("jobs", 3, done=1)
    run.seal("jobs")
    run.adopt("jobs", SECOND)
    run.work("jobs", 3, done=2)
    run.append("jobs", 2)


def adopt_with_loss(run: ScriptedRun) -> None:
    """A node that hangs while another one takes its topic over, and continues after that."""
    run.append("log", 9)
    run.export("log")
    run.append("log", 2)
    run.write_meanwhile("log")
    run.stop(FIRST)
    run.adopt("log", SECOND, accept_loss=True)
    run.append("log", 5)
    run.resume(FIRST)
    run.pass_time(5)
    run.append("log", 2)


def adopt_from_a_lost_node(run: ScriptedRun) -> None:
    run.append("log", 9)
    run.delete("log", 3)
    run.export("log")
    run.append("log", 2)
    run.lose(FIRST)
    run.adopt("log", SECOND, accept_loss=True)
    run.append("log", 5)


def drop(run: ScriptedRun) -> None:
    """A deleted topic, and another one of its name."""
    run.append("log", 9)
    run.export("log")
    run.drop("log")
    run.append("log", 6)
    run.export("log")


def vacuum(run: ScriptedRun) -> None:
    """Objects that crashes left, deleted beside a node that exports and releases."""
    run.append("log", 12)
    run.export("log")
    run.leave_object("log")
    run.pass_time(2 * VACUUM_GRACE_MS / 1000)
    run.append("log", 5)
    run.delete("log", 1, 2, 3, 4)
    run.export("log")
    run.vacuum(FIRST, VACUUM_GRACE_MS)
    run.append("log", 4)


Script = Callable[[ScriptedRun], None]
SCRIPTS: Final[tuple[Script, ...]] = (
    export,
    release,
    seal_and_adopt,
    seal_and_adopt_a_queue,
    adopt_with_loss,
    adopt_from_a_lost_node,
    drop,
    vacuum,
)
