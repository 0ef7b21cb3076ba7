from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from spark.jobs.task_progress import TaskProgress
from tests.harness.machine.manual_clock import ManualClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(out: io.StringIO, clock: ManualClock) -> TaskProgress:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: None))
    return TaskProgress(session, "export", out, clock)


def test_a_terminal_has_one_line_that_changes_and_is_cleared_for_a_sentence() -> None:
    out = Terminal()
    shown = progress(out, ManualClock())
    shown.show(1, 8)
    shown.show(0, 0)
    shown.report("run 2")
    assert out.getvalue() == ("\r\x1b[Kexport: 1 of 8 tasks of this step, 0 s so far\r\x1b[Kexport: run 2\n")


def test_a_log_has_a_line_now_and_then() -> None:
    out, clock = io.StringIO(), ManualClock()
    shown = progress(out, clock)
    for done in range(30):
        shown.show(done, 30)
        clock.advance(1000)
    assert out.getvalue().splitlines() == [
        "export: 10 of 30 tasks of this step, 10 s so far",
        "export: 20 of 30 tasks of this step, 20 s so far",
    ]
