"""The rule of a schedule: when a queue gets a job, and which one. The log and snapshots store it."""

from __future__ import annotations

from typing import Final

import msgspec

CATCH_UP: Final = ("none", "last", "all")
"""The jobs for ticks that the server missed: none, one for the last of them, or one for each."""


class ScheduleRule(msgspec.Struct, frozen=True, array_like=True):
    cron: str
    time_zone: str = "UTC"
    data: bytes = b"null"
    """The data of each job, as JSON."""
    meta: bytes = b""
    """The meta of each job, as JSON, before the server adds its stamp; empty without one."""
    tag: str = ""
    priority: int = 0
    catch_up: str = "last"
    is_paused: bool = False
