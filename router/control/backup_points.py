"""Backup points: one place in the log of every shard, such that no shard is ahead of another.

B1  All shards hold their writes before the first of them continues. So what one shard knew of another at its
    place is in the other's log before that one's place: a copy by a route is never without its source record.
B2  The hold does not wait for the disk. The shards continue after one round of messages; the answer is sent
    when every log is synced up to its place.
B3  A shard that does not hold in time ends the attempt: all shards are released, and nothing was changed. An
    attempt that met a log on its way to the next file is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sized
from typing import Final

import msgspec

from shared.contract.backup_point import BackupPoint, ShardPoint, decode_hold, decode_release
from shared.contract.errors import NOT_IMPLEMENTED, Refusal, not_ready, throttled
from shared.ipc.link_kind import LinkKind
from shared.runtime.clock import Clock

logger = logging.getLogger(__name__)

HOLD_SECONDS: Final = 0.5
SYNC_SECONDS: Final = 30.0
ATTEMPTS: Final = 5
PAUSE_SECONDS: Final = 0.05

Ask = Callable[[int, LinkKind, bytes, float], Awaitable[bytes | None]]
"""Send a request to a shard, with the seconds to wait; the answer is empty or None without one."""


class BackupPoints:
    """The backup points of a server, taken one at a time."""

    def __init__(
        self,
        ask: Ask,
        shards: Sized,
        is_serving: Callable[[int], bool],
        clock: Clock,
        is_in_memory: bool = False,
    ) -> None:
        self._ask = ask
        self._all_shards = shards
        self._is_serving = is_serving
        self._clock = clock
        self._is_in_memory = is_in_memory
        self._is_taking = False
        self.count = 0
        self.last_pause_ms = 0.0

    @property
    def _shards(self) -> range:
        return range(len(self._all_shards))

    async def take(self) -> dict[str, object] | Refusal:
        """Take a backup point; return it as the fields of the response."""
        if self._is_in_memory:
            return Refusal(NOT_IMPLEMENTED, "a server in memory has no data directory to back up")
        if not self._shards:
            return Refusal(NOT_IMPLEMENTED, "a node without shards has no topics of its own to back up")
        if self._is_taking:
            return throttled("another backup point is being taken")
        self._is_taking = True
        try:
            for _ in range(ATTEMPTS - 1):
                point = await self._attempt()
                if isinstance(point, BackupPoint):
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                point = await self._attempt()
        finally:
            self._is_taking = False
        if isinstance(point, str):
            logger.warning("backup point: not taken: %s", point)
            return not_ready(f"no backup point was taken: {point}")
        self.count += 1
        self.last_pause_ms = point.pause_ms
        fields: dict[str, object] = msgspec.to_builtins(point)
        return fields

    async def _attempt(self) -> BackupPoint | str:
        for shard in self._shards:
            if not self._is_serving(shard):
                return f"shard {shard} does not serve"
        started = self._clock.monotonic()
        places: list[ShardPoint] = []
        try:
            answers = await self._ask_all(LinkKind.HOLD, HOLD_SECONDS)
            for shard, answer in enumerate(answers):
                place = decode_hold(answer) if answer else f"no answer within {HOLD_SECONDS:g} s"
                if isinstance(place, str):
                    return f"shard {shard}: {place}"
                places.append(place)
        finally:
            pause_ms = round((self._clock.monotonic() - started) * 1000, 3)
            # Also after a failure, and in the order of the link after the hold, however late that arrives.
            releases = asyncio.ensure_future(self._ask_all(LinkKind.RELEASE, SYNC_SECONDS))
            if len(places) < len(self._shards):
                await releases
        for shard, answer in enumerate(await releases):
            reason = decode_release(answer) if answer else f"not synced within {SYNC_SECONDS:g} s"
            if reason:
                return f"shard {shard}: {reason}"
        return BackupPoint(places, pause_ms)

    async def _ask_all(self, kind: LinkKind, seconds: float) -> list[bytes | None]:
        return await asyncio.gather(*(self._ask(shard, kind, b"", seconds) for shard in self._shards))
